# SPDX-License-Identifier: Apache-2.0
"""Limits on the resources that all peers together use: counts and buffered bytes."""

from collections.abc import Callable
from time import monotonic
from typing import Final

_WORTHWHILE_BYTES: Final = 4096
"""Holders of at least this size can be evicted."""
_SMALL_BYTES: Final = 64 * 1024
_RESERVED: Final = 8
"""One eighth of the bytes is for small holders only."""
GRACE_SECONDS: Final = 10.0
"""Holders younger than this are not evicted: most large bodies are complete by then."""


class Capacity:
    """A counter with a limit."""

    __slots__ = ("_refused", "limit", "name", "refusals", "used")

    def __init__(self, name: str, limit: int, refused: Callable[["Capacity"], None] = lambda _: None) -> None:
        self.name = name
        self.limit = limit
        self.used = 0
        self.refusals = 0
        """Number of refusals."""
        self._refused = refused

    def take(self, amount: int = 1) -> bool:
        """Take `amount` if there is room; return whether it was taken."""
        if self.used + amount > self.limit:
            self.refuse()
            return False
        self.used += amount
        return True

    def give_back(self, amount: int = 1) -> None:
        """Release `amount`."""
        self.used -= amount

    def refuse(self) -> None:
        """Count a refusal."""
        self.refusals += 1
        self._refused(self)


class BufferedBytes(Capacity):
    """Buffered bytes, counted on one account for each holder.

    Without room, the oldest large holder is evicted if it is older than `GRACE_SECONDS`: slow senders and readers lose
    to others. A part of the room is for small holders only.
    """

    __slots__ = ("_clock", "_holders", "room_for_all")

    def __init__(
        self,
        name: str,
        limit: int,
        refused: Callable[[Capacity], None] = lambda _: None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        super().__init__(name, limit, refused)
        self._clock = clock
        self.room_for_all = limit - limit // _RESERVED
        """Above this number of bytes, only small holders have room."""
        self._holders: dict[Account, float] = {}  # large holders and since when; the oldest first

    def account(self) -> "Account":
        """Return a new account; close it after use."""
        return Account(self)

    def make_room(self, size: int, *, asker: "Account") -> bool:
        """Evict holders until there is room for so many bytes; return whether there is."""
        small = asker.size + size < _SMALL_BYTES
        limit = self.limit if small else self.room_for_all
        while self.used + size > limit:
            oldest = next((each for each in self._holders if each is not asker), None)
            self.refuse()
            if oldest is None or self._clock() - self._holders[oldest] < GRACE_SECONDS:
                return False
            oldest.evict()
        return True

    def hold(self, account: "Account") -> None:
        """Add an account to the large holders, or remove it."""
        if account.size < _WORTHWHILE_BYTES:
            self._holders.pop(account, None)
        elif account not in self._holders:
            self._holders[account] = self._clock()


class Account:
    """The bytes of one holder."""

    __slots__ = ("_bytes", "closed", "on_evict", "size")

    def __init__(self, held: BufferedBytes) -> None:
        self._bytes = held
        self.size = 0
        self.closed = False
        """Whether everything is released; more bytes are not counted."""
        self.on_evict: Callable[[], None] = _nothing
        """Called once on eviction: the holder must release its bytes soon."""

    def add(self, size: int) -> bool:
        """Count more bytes if there is room; return whether they are counted."""
        held = self._bytes
        if self.closed:
            return False
        if held.used + size > held.room_for_all and not held.make_room(size, asker=self):
            return False
        self.put(size)
        return True

    def put(self, size: int) -> None:
        """Count `size` more bytes (fewer if negative) without a check of the limit."""
        if self.closed:
            return
        held = self._bytes
        held.used += size
        before, self.size = self.size, self.size + size
        if (before < _WORTHWHILE_BYTES) is not (self.size < _WORTHWHILE_BYTES):
            held.hold(self)

    def evict(self) -> None:
        """Close the account and make the holder release its bytes."""
        on_evict = self.on_evict
        self.close()
        on_evict()

    def close(self) -> None:
        """Release everything; only the first call has an effect."""
        if not self.closed:
            if self.size:
                self.put(-self.size)
            self.closed = True
            self.on_evict = _nothing


def _nothing() -> None:
    pass
