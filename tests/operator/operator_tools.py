# SPDX-License-Identifier: Apache-2.0
"""Programs of others that these tests run: a browser, and Prometheus with its tool.

    python -m tests.operator.operator_tools

installs what is missing, with apt-get and the rights of root.
"""

import os
import shutil
import subprocess
import sys

PACKAGES = {"chromium": "chromium", "prometheus": "prometheus", "promtool": "prometheus"}
"""Debian's package of each program."""


def missing() -> list[str]:
    """Return the programs that are not on the PATH."""
    return [program for program in PACKAGES if shutil.which(program) is None]


def remedy(programs: list[str]) -> str:
    """Return how to get them."""
    packages = " ".join(dict.fromkeys(PACKAGES[program] for program in programs))
    return f"{', '.join(programs)} not found: install them, in Debian with apt-get install {packages}"


def main() -> int:
    """Install what is missing; return 1 where that fails and CI is set."""
    lacking = missing()
    if lacking and shutil.which("apt-get") and os.geteuid() == 0:
        quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        packages = dict.fromkeys(PACKAGES[program] for program in lacking)
        subprocess.run(["apt-get", "update", "-qq"], env=quiet, check=False)  # noqa: S607  found on the PATH
        subprocess.run(
            ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages],  # noqa: S607  the same
            env=quiet,
            check=False,
        )
        lacking = missing()
    if lacking:
        sys.stderr.write(f"{remedy(lacking)}\n")
    return 1 if lacking and os.environ.get("CI") else 0


if __name__ == "__main__":
    sys.exit(main())
