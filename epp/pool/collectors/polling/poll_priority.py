# SPDX-License-Identifier: Apache-2.0
"""Polls out of turn, for an endpoint that may have died, with callbacks for the outcome."""

import math

from epp.framework.datalayer import NotAskedError, UnreachableError
from epp.routing.outliers import Told, Verdict

SHORTEST_GAP_SECONDS = 0.01
"""Between the beginnings of two polls of an endpoint, however urgent: clients can make them urgent."""
_MOST_QUESTIONS = 1_000
_MOST_PER_SECOND, _MOST_AT_ONCE = 64.0, 32.0
"""Polls of a pool that are out of turn."""
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.1, 10.0


class PollPriority:
    """Questions to one endpoint, and whether the end of a kept connection tells anything.

    A question is answered by a poll that begins after it; a refusal answers those that came in the meantime, too.
    A server that closes kept connections as a habit is polled out of turn ever more rarely for that.
    """

    __slots__ = ("_ended_at", "_pause_seconds", "_questions", "began_at")

    def __init__(self) -> None:
        self.began_at = -math.inf
        """When the last poll began."""
        self._questions: list[tuple[float, Told]] = []
        self._pause_seconds = 0.0
        self._ended_at: float | None = None
        """When the connection ended that the poll under way is for."""

    @property
    def is_asked(self) -> bool:
        """Whether a question is open."""
        return bool(self._questions)

    @property
    def earliest(self) -> float:
        """The earliest time of the next poll."""
        return self.began_at + SHORTEST_GAP_SECONDS

    def ask(self, now: float, tell: Told) -> None:
        """Add a question; of very many, the last are told that the endpoint is silent."""
        if len(self._questions) >= _MOST_QUESTIONS:
            tell(Verdict.SILENT)
        else:
            self._questions.append((now, tell))

    def connection_ended(self, now: float) -> bool:
        """Return whether the end of a kept connection is a reason for a poll."""
        if self._ended_at is not None and abs(now - self._ended_at) < self._pause_seconds:
            return False
        self._ended_at = now
        self._pause_seconds = min(max(2 * self._pause_seconds, _FIRST_PAUSE_SECONDS), _LONGEST_PAUSE_SECONDS)
        return True

    def settled(self, outcome: bytes | Exception) -> None:
        """Answer questions by the outcome of a poll."""
        verdict = verdict_of(outcome)
        if verdict is Verdict.REFUSES:
            self._pause_seconds = 0.0
        if not self._questions:
            return
        asked, self._questions = self._questions, []
        for at, tell in asked:
            if verdict is Verdict.REFUSES or at <= self.began_at:
                tell(verdict)
            else:
                self._questions.append((at, tell))

    def end(self) -> None:
        """Answer all that is open: the endpoint has left."""
        asked, self._questions = self._questions, []
        for _, tell in asked:
            tell(Verdict.SILENT)


class UrgentBudget:
    """A limit on the polls of a pool that are out of turn, the same on a busy machine, where others are rare."""

    __slots__ = ("_at", "_left")

    def __init__(self) -> None:
        self._at = 0.0
        self._left = _MOST_AT_ONCE

    def take(self, now: float) -> bool:
        """Return whether one more may begin now, and count it."""
        self._left = min(self._left + max(now - self._at, 0.0) * _MOST_PER_SECOND, _MOST_AT_ONCE)
        self._at = now
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True


def verdict_of(outcome: bytes | Exception) -> Verdict:
    """Return what a poll tells of the port that was asked."""
    if isinstance(outcome, UnreachableError):
        return Verdict.REFUSES if outcome.refused else Verdict.SILENT
    return Verdict.SILENT if isinstance(outcome, NotAskedError) else Verdict.ANSWERS
