# SPDX-License-Identifier: Apache-2.0
"""What h2spec found, from its report in the form of JUnit."""

import enum
from pathlib import Path
from xml.etree import ElementTree as ET

import msgspec


class Outcome(enum.StrEnum):
    PASSED = "passed"
    SKIPPED = "skipped"
    """h2spec itself found that the case cannot be tried on this server."""
    FAILED = "failed"


class Case(msgspec.Struct, frozen=True):
    name: str
    """Section and title, `http2/6.9.1 Sends ...`; no two cases have the same."""
    outcome: Outcome
    problem: str = ""
    """What was expected, then what came."""


def read_report(path: Path) -> list[Case]:
    """Return all cases of a report."""
    root = ET.parse(path).getroot()  # noqa: S314  written by a program that the test started
    return [_case(element) for element in root.iter("testcase")]


def _case(element: ET.Element) -> Case:
    name = f"{element.get('package')} {element.get('classname')}"
    for kind, outcome in (("error", Outcome.FAILED), ("failure", Outcome.FAILED), ("skipped", Outcome.SKIPPED)):
        if (problem := element.find(kind)) is not None:
            return Case(name, outcome, "; ".join("".join(problem.itertext()).split("\n")))
    return Case(name, Outcome.PASSED)
