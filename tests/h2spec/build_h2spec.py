# SPDX-License-Identifier: Apache-2.0
"""h2spec, which tests HTTP/2 servers for conformance, built once with Go from its module proxy.

    python -m tests.h2spec.build_h2spec

It is kept in the directory that `H2SPEC_DIRECTORY` names, or else in one of this version in the user's cache.
"""

import sys
from pathlib import Path

from tests.support.go_programs import Program, ProgramSet

H2SPEC = ProgramSet(
    (
        Program(
            "h2spec",
            "v2.2.1",  # the newest that the module proxy has; later tags lack the /v2 that a module needs
            "github.com/summerwind/h2spec/cmd/h2spec",
            Path(__file__).parent / "asset",
        ),
    ),
    make_target="h2spec",
    place_variable="H2SPEC_DIRECTORY",
)

if __name__ == "__main__":
    sys.exit(H2SPEC.main())
