# SPDX-License-Identifier: Apache-2.0
"""Conditions of endpoints: how each took being asked, whether it is used, and what to do about it."""

from collections.abc import Callable
from dataclasses import dataclass

from epp.framework.datalayer import Contact
from epp.framework.endpoint import Endpoint

_USED = frozenset({Contact.NOT_ASKED, Contact.ANSWERS, Contact.READ_IN_PART, Contact.NO_PAGE, Contact.FAILING})


@dataclass(frozen=True, slots=True)
class Condition:
    """One kind of contact, in words."""

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
        """All endpoints and their conditions."""
        return tuple(self._by_id.values())

    def subscribe(self, listener: Callable[[], None]) -> None:
        """Call `listener` when an endpoint comes, leaves, or changes its kind of contact."""
        self._listeners.append(listener)

    def put(self, endpoint: Endpoint, condition: Condition) -> None:
        """Set the condition of an endpoint."""
        before = self._by_id.get(endpoint.id)
        if before is not None and before[1] is condition:
            return
        self._by_id[endpoint.id] = (endpoint, condition)
        if before is None or before[1].contact is not condition.contact:
            self._notify()

    def remove(self, identity: str) -> None:
        """Forget an endpoint that left."""
        if self._by_id.pop(identity, None) is not None:
            self._notify()

    def _notify(self) -> None:
        for listener in self._listeners:
            listener()
