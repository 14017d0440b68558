# SPDX-License-Identifier: Apache-2.0
"""What all peers together may take of this program: things that are counted, and bytes that wait."""

from collections.abc import Callable
from time import monotonic
from typing import Final

_WORTHWHILE_BYTES: Final = 4096
"""Holders of at least this size can be evicted."""
_SMALL_BYTES: Final = 64 * 1024
_RESERVED: Final = 8
"""A part of the bytes, one in so many, is for small holders only."""
GRACE_SECONDS: Final = 10.0
"""Holders younger than this are not evicted: most large bodies are complete by then."""


class Capacity:
    """An amount with a limit; all that is taken is given back."""

    __slots__ = ("_refused", "limit", "name", "refusals", "used")

    def __init__(self, name: str, limit: int, refused: Callable[["Capacity"], None] = lambda _: None) -> None:
        self.name = name
        self.limit = limit
        self.used = 0
        self.refusals = 0
        """How often there was no room."""
        self._refused = refused

    def take(self, amount: int = 1) -> bool:
        """Take so many, if there is room for them; return whether there was."""
        if self.used + amount > self.limit:
            self.refuse()
            return False
        self.used += amount
        return True

    def give_back(self, amount: int = 1) -> None:
        """Have room for so many more."""
        self.used -= amount

    def refuse(self) -> None:
        """Count that there was no room."""
        self.refusals += 1
        self._refused(self)


class BufferedBytes(Capacity):
    """Bytes that wait in this program, each counted on the account of who made it hold them.

    Where there is no room, the holder of the longest standing gives way, if it has had its time; so one that sends or
    reads slowly loses to others, and not they to it. Those that hold little have some room to themselves.
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
        """The bytes beyond which there is room for small holders only."""
        self._holders: dict[Account, float] = {}  # those with a worthwhile amount, and since when; the oldest first

    def account(self) -> "Account":
        """Return a new account, which is to be closed."""
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
            oldest.give_way()
        return True

    def hold(self, account: "Account") -> None:
        """Count an account among those that hold a worthwhile amount, or no more."""
        if account.size < _WORTHWHILE_BYTES:
            self._holders.pop(account, None)
        elif account not in self._holders:
            self._holders[account] = self._clock()


class Account:
    """The bytes of one holder."""

    __slots__ = ("_bytes", "closed", "on_give_way", "size")

    def __init__(self, held: BufferedBytes) -> None:
        self._bytes = held
        self.size = 0
        self.closed = False
        """Whether nothing more is counted: all is given back."""
        self.on_give_way: Callable[[], None] = _nothing
        """Called once on eviction: the holder must release its bytes soon."""

    def add(self, size: int) -> bool:
        """Count bytes more; return False where there is no room, and nothing is counted."""
        held = self._bytes
        if self.closed:
            return False
        if held.used + size > held.room_for_all and not held.make_room(size, asker=self):
            return False
        self.put(size)
        return True

    def put(self, size: int) -> None:
        """Count bytes more that are there, room or not, or fewer."""
        if self.closed:
            return
        held = self._bytes
        held.used += size
        before, self.size = self.size, self.size + size
        if (before < _WORTHWHILE_BYTES) is not (self.size < _WORTHWHILE_BYTES):
            held.hold(self)

    def give_way(self) -> None:
        """Close the account and make the holder release its bytes."""
        on_give_way = self.on_give_way
        self.close()
        on_give_way()

    def close(self) -> None:
        """Give everything back, once."""
        if not self.closed:
            if self.size:
                self.put(-self.size)
            self.closed = True
            self.on_give_way = _nothing


def _nothing() -> None:
    pass
