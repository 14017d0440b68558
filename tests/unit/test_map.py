# SPDX-License-Identifier: Apache-2.0
"""epp/README.md, the map of the code, names files, rooms and functions that exist."""

import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
MAP = (REPOSITORY / "epp" / "README.md").read_text()
PATHS = sorted(set(re.findall(r"`((?:\w+/)*\w+\.py)`", MAP)))
ROOMS = re.search(r"^epp/\n(.*?)^scorers/", MAP, re.DOTALL | re.MULTILINE)[1]
QUESTIONS = re.findall(
    r"^\| [^|]+ \| (.*`.*) \|$", MAP.partition("## Where is ...?")[2].partition("## Rooms")[0], re.MULTILINE
)


@pytest.mark.parametrize("path", PATHS)
def test_file_of_the_map_exists(path):
    found = [*(REPOSITORY / "epp").glob(path), *(REPOSITORY / "scorers" / "epp_scorers").glob(path)]
    assert found, f"epp/README.md names {path}, which does not exist"


def test_rooms_of_the_map_are_all_there_are():
    named = set(re.findall(r"^  (\w+(?:/|\.py)) ", ROOMS, re.MULTILINE))
    there = {f"{path.name}/" for path in (REPOSITORY / "epp").iterdir() if (path / "__init__.py").exists()}
    there |= {path.name for path in (REPOSITORY / "epp").glob("*.py") if not path.name.startswith("__")}
    assert named == there


def test_ten_questions_of_a_stranger_have_one_place_each():
    assert len(QUESTIONS) >= 10
    for answer in QUESTIONS:
        names = re.findall(r"`(\w+(?:\.\w+)?)` in [^|]*?`([\w/]+\.py)`", answer)
        for name, path in names:
            assert re.search(rf"(def|class) {name.rpartition('.')[2]}\b", (REPOSITORY / "epp" / path).read_text()), name
