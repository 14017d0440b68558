# SPDX-License-Identifier: Apache-2.0
"""What the port of an endpoint says when it is asked out of turn."""

from collections.abc import Callable
from enum import StrEnum
from typing import TypeAlias

from epp.framework.endpoint import Endpoint


class Verdict(StrEnum):
    """The outcome of one question."""

    ANSWERS = "answers"
    REFUSES = "refuses"
    """Nothing listens there, or it closes connections without a word."""
    SILENT = "silent"
    """No answer in time, or the endpoint could not be asked."""


Told: TypeAlias = Callable[[Verdict], None]
Ask: TypeAlias = Callable[[Endpoint, Told], None]
"""Asks an endpoint soon, and tells the verdict once."""
