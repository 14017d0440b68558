# SPDX-License-Identifier: Apache-2.0
"""Chains of block hashes that this picker placed, as payloads for other pickers, and theirs."""

from array import array
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from epp.framework.sharing import MOST_PAYLOAD_BYTES

_MOST_WAITING_BYTES = 1024 * 1024
"""Chains that wait to be told, such as while a store is away; more drop the oldest."""
_ADDRESS_BYTES, _CHAIN_BYTES = 60, 8
"""Most bytes of an address, and of the framing of a chain."""
_MOST_CHAINS = 512
"""In one payload: another picker records each in ten microseconds."""
_REPEAT_SECONDS = 5.0
"""Time in which the same chain at the same endpoint is told once: others have just heard of it."""
_MOST_RECENT = 20_000


class Placed(NamedTuple):
    """A chain that was sent to an endpoint, or taken back since the request failed there."""

    address: str
    chain: bytes
    """Its hashes, as many as fit in a payload."""
    is_withdrawn: bool = False

    @property
    def hashes(self) -> "array[int]":
        """The hashes of its blocks."""
        return array("Q", self.chain)


class _Payload(msgspec.Struct, frozen=True, array_like=True):
    addresses: list[str]
    places: list[int]
    """By chain: the position of its address; -1 minus that for a chain that was taken back."""
    chains: list[bytes]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Payload).decode


class PlacementNews:
    """Chains to publish, oldest first."""

    __slots__ = ("_bytes", "_recent", "_waiting", "dropped")

    def __init__(self) -> None:
        self.dropped = 0
        """Chains that were never told."""
        self._waiting: deque[Placed] = deque()
        self._bytes = 0
        self._recent: dict[tuple[str, int], float] = {}
        """When a chain was last told, by address and last hash."""

    def placed(self, address: str, chain: "array[int]", now: float) -> None:
        """Note that a chain was sent to an endpoint."""
        key = address, chain[-1]
        if now - self._recent.get(key, -_REPEAT_SECONDS) < _REPEAT_SECONDS:
            return
        if len(self._recent) >= _MOST_RECENT:
            self._recent.clear()
        self._recent[key] = now
        self._add(Placed(address, _cut(chain)))

    def withdrawn(self, address: str, chain: "array[int]") -> None:
        """Note that it was taken back."""
        self._recent.pop((address, chain[-1]), None)
        self._add(Placed(address, _cut(chain), is_withdrawn=True))

    def take(self) -> bytes | None:
        """Return as many as fit in a payload, oldest first; None for none."""
        if not self._waiting:
            return None
        numbers: dict[str, int] = {}
        places: list[int] = []
        chains: list[bytes] = []
        room = MOST_PAYLOAD_BYTES
        while self._waiting and len(chains) < _MOST_CHAINS:
            one = self._waiting[0]
            room -= len(one.chain) + _CHAIN_BYTES + (0 if one.address in numbers else _ADDRESS_BYTES)
            if room < 0 and chains:
                break
            number = numbers.setdefault(one.address, len(numbers))
            places.append(-1 - number if one.is_withdrawn else number)
            chains.append(one.chain)
            self._waiting.popleft()
            self._bytes -= len(one.chain)
        return _encode(_Payload(list(numbers), places, chains))

    def _add(self, one: Placed) -> None:
        self._waiting.append(one)
        self._bytes += len(one.chain)
        while self._bytes > _MOST_WAITING_BYTES:
            self._bytes -= len(self._waiting.popleft().chain)
            self.dropped += 1


def placements_in(payload: bytes) -> Iterator[Placed]:
    """Return the chains that another picker placed; raises ValueError for an invalid payload."""
    told = _decode(payload)
    count = len(told.addresses)
    if len(told.places) != len(told.chains) or not all(-count <= place + (place < 0) < count for place in told.places):
        raise ValueError("chains without an address")
    if len(told.chains) > _MOST_CHAINS:
        raise ValueError(f"{len(told.chains)} chains are more than {_MOST_CHAINS}")
    if any(not chain or len(chain) % 8 for chain in told.chains):
        raise ValueError("chains are not of 64-bit hashes")
    return (
        Placed(told.addresses[place if place >= 0 else -1 - place], chain, is_withdrawn=place < 0)
        for place, chain in zip(told.places, told.chains, strict=True)
    )


def _cut(chain: "array[int]") -> bytes:
    return chain.tobytes()[: MOST_PAYLOAD_BYTES - _ADDRESS_BYTES - _CHAIN_BYTES]
