# SPDX-License-Identifier: Apache-2.0
"""Bytes as the text of a configuration: it is assembled, or refused with the places of mistakes."""

from epp.config import Builder, assemble, load_text
from epp.framework import ManualClock
from epp.framework.errors import ConfigurationError
from epp.framework.registry import Registry
from perf.fuzz.targets import FuzzTarget

_ORIGIN = "fuzzed.yaml"


class Target(FuzzTarget):
    """Texts of configurations."""

    def __init__(self) -> None:
        self.assembled = 0

    def __call__(self, content: bytes) -> None:
        try:
            loaded = load_text(content.decode(errors="replace"), _ORIGIN)
            assemble(loaded, Builder(Registry(), ManualClock()))
            self.assembled += 1
        except ConfigurationError as error:
            assert str(error).strip(), "a refusal that says nothing"  # noqa: PT017  allowed, with a message
            problems = getattr(error, "problems", ())
            assert all(problem.origin == _ORIGIN for problem in problems), "a problem without a place"
