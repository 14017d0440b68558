# SPDX-License-Identifier: Apache-2.0
"""Every source file names its licence in its first line."""

from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
ROOMS = ("epp", "perf", "proto", "scorers", "tests", "tools")
COMMENTS = {".py": "#", ".proto": "//"}
FILES = [path for room in ROOMS for path in sorted((REPOSITORY / room).rglob("*")) if path.suffix in COMMENTS]


@pytest.mark.parametrize("suffix", COMMENTS)
def test_first_line_of_every_source_file_names_the_licence(suffix):
    header = f"{COMMENTS[suffix]} SPDX-License-Identifier: Apache-2.0"
    found = [path for path in FILES if path.suffix == suffix]
    assert found
    without = [str(path.relative_to(REPOSITORY)) for path in found if path.read_text().partition("\n")[0] != header]
    if without:
        pytest.fail(f"begin {', '.join(without)} with: {header}", pytrace=False)
