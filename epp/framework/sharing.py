# SPDX-License-Identifier: Apache-2.0
"""Interface of components whose state the pickers of one pool share, independent of transport and storage."""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Generic, TypeVar

import msgspec

from epp.framework.endpoint import Endpoint
from epp.framework.snapshot import Snapshot

MOST_PAYLOAD_BYTES = 32 * 1024
"""Largest payload of one component in one batch."""
_MOST_UNSENT_BYTES = 1024 * 1024
_LIST_BYTES = 5
"""Maximum bytes that a list takes in addition to its entries."""

E = TypeVar("E")
_encode = msgspec.msgpack.Encoder().encode


class Shareable(ABC):
    """A component that publishes its changes and applies those of other pickers.

    Payloads name endpoints by address, because slots differ between pickers. Payloads of other pickers are untrusted:
    `apply` validates them, and limits the memory for their state. All methods are called between requests.
    """

    __slots__ = ()

    is_lasting: bool = False
    """Whether the state of a picker remains valid after its end; otherwise `forget` drops it."""

    is_for_decisions: bool = False
    """Whether only decisions need the changes; a process that routes no requests applies them only for simulations."""

    is_answered: bool = False
    """Whether other pickers wait for the changes that result from applying theirs."""

    @property
    @abstractmethod
    def share_name(self) -> str:
        """Name of the component, the same in every picker."""

    def join(self, salt: int) -> None:  # noqa: B027  to override
        """Start to record changes. `salt` is a 64-bit number that is the same in all pickers; it may change later."""

    def renew(self) -> None:  # noqa: B027  to override
        """Publish the whole state again with the next changes: others may have missed some."""

    @abstractmethod
    def changes(self, snapshot: Snapshot) -> bytes | None:
        """Return the changes of this picker since the last call, at most MOST_PAYLOAD_BYTES; the rest follows later."""

    @abstractmethod
    def apply(self, peer: str, payload: bytes, snapshot: Snapshot) -> int:
        """Apply changes of another picker; return the number of entries. Raises ValueError for an invalid payload."""

    def connection(self, *, is_lost: bool) -> None:  # noqa: B027  to override
        """Report that the connection to the other pickers is lost, or is restored."""

    def forget(self, peer: str) -> None:  # noqa: B027  to override
        """Drop the state of a picker that has ended, or has sent nothing for a long time."""


def slots_by_address(endpoints: Sequence[Endpoint | None]) -> Mapping[str, int]:
    """Return the slot of each address; for `snapshot.endpoints.derive`."""
    return {endpoint.hostport: slot for slot, endpoint in enumerate(endpoints) if endpoint is not None}


class Outbox(Generic[E]):
    """Changes for other pickers as entries of one type, an array-like struct, and the reader of such entries.

    Entries are kept only while the outbox is open, since a picker without peers sends nothing. At most 1 MiB waits, for
    example while a store is unreachable; then the oldest entries are dropped.
    """

    def __init__(self, entry_type: type[E]) -> None:
        self.is_open = False
        self._unsent: deque[bytes] = deque()
        self._bytes = 0
        self._decode: Callable[[bytes], list[E]] = msgspec.msgpack.Decoder(list[entry_type]).decode  # type: ignore[valid-type]

    def add(self, entry: E) -> None:
        """Add an entry, which must fit into one payload."""
        if not self.is_open:
            return
        packed = _encode(entry)
        self._unsent.append(packed)
        self._bytes += len(packed)
        while self._bytes > _MOST_UNSENT_BYTES:
            self._bytes -= len(self._unsent.popleft())

    def take(self) -> bytes | None:
        """Return a payload with the oldest entries, at most MOST_PAYLOAD_BYTES; None if there are none."""
        taken: list[msgspec.Raw] = []
        room = MOST_PAYLOAD_BYTES - _LIST_BYTES
        while self._unsent and len(self._unsent[0]) <= room:
            packed = self._unsent.popleft()
            self._bytes -= len(packed)
            room -= len(packed)
            taken.append(msgspec.Raw(packed))
        return _encode(taken) if taken else None

    def read(self, payload: bytes) -> list[E]:
        """Return the entries in a payload of another picker; raises ValueError if it is invalid."""
        try:
            return self._decode(payload)
        except msgspec.MsgspecError as error:
            raise ValueError(str(error)) from error
