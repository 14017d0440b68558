# SPDX-License-Identifier: Apache-2.0
"""Interface of components whose state pickers of one pool share; it knows neither processes nor stores."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from epp.framework.endpoint import Endpoint
from epp.framework.snapshot import Snapshot

MOST_PAYLOAD_BYTES = 32 * 1024
"""Largest payload of one component in one batch."""


class Shareable(ABC):
    """A component that publishes its changes and applies those of other pickers.

    Payloads name endpoints by address, as slots differ between pickers. A payload of another picker comes from outside:
    `apply` checks it, and bounds the memory for the state of others. All methods are called between requests.
    """

    __slots__ = ()

    is_lasting: bool = False
    """Whether the state of a picker counts after its end; else `forget` drops it."""

    is_for_decisions: bool = False
    """Whether only decisions need the changes of others: a process that routes no requests applies them to simulate."""

    is_answered: bool = False
    """Whether other pickers wait for what this one says after it applied their changes."""

    @property
    @abstractmethod
    def share_name(self) -> str:
        """Name of the same component at every picker."""

    def join(self, salt: int) -> None:  # noqa: B027  to override
        """Note changes from now on. `salt`, of 64 bits, is the same at all pickers; it may change later."""

    def renew(self) -> None:  # noqa: B027  to override
        """Publish the whole state again with the next changes: others may have missed some."""

    @abstractmethod
    def changes(self, snapshot: Snapshot) -> bytes | None:
        """Return the changes of this picker since the last call, at most MOST_PAYLOAD_BYTES; the rest next time."""

    @abstractmethod
    def apply(self, peer: str, payload: bytes, snapshot: Snapshot) -> int:
        """Apply changes of another picker; return the number of entries. Raises ValueError for an invalid payload."""

    def connection(self, *, is_lost: bool) -> None:  # noqa: B027  to override
        """Note that other pickers are not reached from now on, or are again."""

    def forget(self, peer: str) -> None:  # noqa: B027  to override
        """Drop the state of another picker: it ended, or has been silent for long."""


def slots_by_address(endpoints: Sequence[Endpoint | None]) -> Mapping[str, int]:
    """Return the slot of each address; for `snapshot.endpoints.derive`."""
    return {endpoint.hostport: slot for slot, endpoint in enumerate(endpoints) if endpoint is not None}
