# SPDX-License-Identifier: Apache-2.0
"""Conditions of endpoints: reachability, whether they get requests, and the remedy."""

from collections.abc import Callable
from dataclasses import dataclass

from epp.framework.datalayer import Contact, UnreachableError
from epp.framework.endpoint import Endpoint
from epp.framework.snapshot import ANSWERS, REFUSES, SILENT
from epp.routing.datastore import Datastore

_USED = frozenset({Contact.NOT_ASKED, Contact.ANSWERS, Contact.READ_IN_PART, Contact.NO_PAGE, Contact.FAILING})
_MAX_TIMEOUTS = 3


@dataclass(frozen=True, slots=True)
class Condition:
    """A kind of contact with its reason and remedy."""

    contact: Contact
    why: str = ""
    remedy: str = ""

    @property
    def used(self) -> bool:
        """Whether requests are sent to the endpoint."""
        return self.contact in _USED


NOT_ASKED = Condition(Contact.NOT_ASKED)
ANSWERING = Condition(Contact.ANSWERS)


class Conditions:
    """The condition of each endpoint of the pool; may be read in any thread."""

    def __init__(self) -> None:
        self._by_id: dict[str, tuple[Endpoint, Condition]] = {}
        self._listeners: list[Callable[[], None]] = []

    @property
    def all(self) -> tuple[tuple[Endpoint, Condition], ...]:
        return tuple(self._by_id.values())

    def subscribe(self, listener: Callable[[], None]) -> None:
        """Call `listener` when an endpoint joins, leaves, or changes its kind of contact."""
        self._listeners.append(listener)

    def put(self, endpoint: Endpoint, condition: Condition) -> None:
        before = self._by_id.get(endpoint.id)
        if before is not None and before[1] is condition:
            return
        self._by_id[endpoint.id] = (endpoint, condition)
        if before is None or before[1].contact is not condition.contact:
            self._notify()

    def remove(self, identity: str) -> None:
        if self._by_id.pop(identity, None) is not None:
            self._notify()

    def _notify(self) -> None:
        for listener in self._listeners:
            listener()


class Reachability:
    """Whether an endpoint can be reached: not after a refused connection or several timeouts in a row."""

    __slots__ = ("_conditions", "_endpoint", "_is_well", "_store", "_timeouts", "_unreadable", "_verdict")

    def __init__(self, store: Datastore, endpoint: Endpoint, conditions: Conditions | None = None) -> None:
        self._store = store
        self._endpoint = endpoint
        self._conditions = conditions or Conditions()
        self._timeouts = 0
        self._unreadable: dict[str, Condition] = {}
        """Conditions by source, for sources whose page cannot be read."""
        self._verdict = ANSWERS
        self._is_well = False
        """Whether the last response was without problems, so that the next one need not be recorded."""
        self._conditions.put(endpoint, NOT_ASKED)

    @property
    def lost(self) -> bool:
        """Whether the endpoint cannot be reached."""
        return self._verdict != ANSWERS

    def answered(self, source: str = "", problem: Condition | None = None) -> None:
        """Record a response to a source, with the problem of its content if any."""
        if self._is_well and problem is None:
            return
        self._timeouts = 0
        if problem is None:
            self._unreadable.pop(source, None)
        else:
            self._unreadable[source] = problem
        self._mark(ANSWERS, next(iter(self._unreadable.values()), ANSWERING))

    def forget(self, source: str) -> None:
        """Drop the problem of a source that is no longer polled."""
        if self._unreadable.pop(source, None) is not None and not self.lost:
            self._mark(ANSWERS, next(iter(self._unreadable.values()), ANSWERING))

    def missed(self, error: UnreachableError) -> None:
        """Record a refused connection or a timeout."""
        self._is_well = False
        self._timeouts = 0 if error.refused else self._timeouts + 1
        if error.refused or self._timeouts >= _MAX_TIMEOUTS:
            # An endpoint that refused connections must respond before it is used again.
            verdict = REFUSES if error.refused or self._verdict == REFUSES else SILENT
            self._mark(verdict, Condition(error.contact, str(error), error.remedy))

    def rule_out(self, contact: Contact, why: str, remedy: str) -> None:
        """Record that the gateway cannot use the endpoint."""
        self._mark(REFUSES, Condition(contact, why, remedy))

    def _mark(self, verdict: float, condition: Condition) -> None:
        self._is_well = condition is ANSWERING and not self._unreadable
        self._verdict = verdict
        self._store.mark(self._endpoint, verdict)
        self._conditions.put(self._endpoint, condition)
