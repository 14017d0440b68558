# SPDX-License-Identifier: Apache-2.0
"""Reservations of routed requests: assumed at the pick, committed as the endpoint answers, released once."""

from typing import Protocol

from epp.framework.response import Usage
from epp.framework.snapshot import Snapshot


class Reservation(Protocol):
    """Something that a routed request holds until it ends; every verb may be called any number of times."""

    def commit(self) -> None:
        """Keep it for good: the endpoint answers, with the headers of a response or with a part of its body."""

    def first_token(self) -> None:
        """Give back what only the prompt took: the endpoint has computed it."""

    def move(self, snapshot: Snapshot, slot: int) -> None:
        """Hold it at another endpoint from now on: the gateway went there."""

    def release(self, usage: Usage | None) -> None:
        """Give everything back; `usage` is what the endpoint counted, None where that is not known."""
