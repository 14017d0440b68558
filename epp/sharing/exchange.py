# SPDX-License-Identifier: Apache-2.0
"""Batches of the changes of pickers; no I/O, and independent of the transport."""

import sys
from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from math import inf

import msgspec
import structlog

from epp.framework.clock import Clock
from epp.framework.sharing import MOST_PAYLOAD_BYTES, Shareable
from epp.framework.snapshot import Snapshot

BATCH_SECONDS = 0.02
"""Least time between two batches."""
_PEERS_AT_FULL_RATE = 10
"""Number of other pickers above which batches become rarer, so that each picker applies about 500 a second."""
_HEARTBEAT_SECONDS = 1.0
"""Longest time without a batch; also the time after which the whole state is sent again."""
SILENCE_SECONDS = 5.0
"""Time without a batch after which a picker is forgotten, except its lasting state."""
_MOST_PEERS = 256
_MOST_PARTS = 64
"""Shareable components of one picker."""
_MOST_BATCH_BYTES = _MOST_PARTS * (MOST_PAYLOAD_BYTES + 256)
_MOST_NAME, _MOST_REASON = 256, 200
COUNTS = ("published", "bytes_out", "applied", "bytes_in", "entries", "lost", "repeated", "refused")
"""Names of counts: batches, their bytes and entries, and batches that were not applied."""
_FORMAT = f"1{sys.byteorder[0]}"
"""Version of batches, and byte order of hashes."""

_log = structlog.get_logger()


class Batch(msgspec.Struct, frozen=True, array_like=True):
    """Changes of one picker in one interval."""

    format: str
    picker: str
    sequence: int
    """Number of the batch, from 1."""
    parts: dict[str, bytes]
    """Payloads by the `share_name` of their component."""
    is_last: bool = False
    """Whether the picker ends."""


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Batch).decode


def _read(data: bytes) -> Batch:
    """Return a batch; raises ValueError or MsgspecError if it is invalid or too large."""
    if len(data) > _MOST_BATCH_BYTES:
        raise ValueError(f"it has {len(data)} bytes")
    batch = _decode(data)
    if batch.format != _FORMAT or len(batch.picker) > _MOST_NAME or len(batch.parts) > _MOST_PARTS:
        raise ValueError(f"its format is {batch.format[:_MOST_NAME]!r}, not {_FORMAT!r}")
    if any(len(payload) > MOST_PAYLOAD_BYTES for payload in batch.parts.values()):
        raise ValueError(f"a part has more than {MOST_PAYLOAD_BYTES} bytes")
    return batch


@dataclass(slots=True)
class _Peer:
    sequence: int
    received_at: float


class Exchange:
    """Collects the changes of shareable components in batches, and applies the batches of other pickers.

    A batch that is lost, repeated or late has no lasting effect: the whole state is sent again each second, repeated
    batches are recognised by their sequence number, and a silent picker is forgotten.
    """

    def __init__(
        self,
        picker: str,
        shareables: Callable[[], tuple[Shareable, ...]],
        snapshot: Callable[[], Snapshot],
        clock: Clock,
        salt: int,
        *,
        defers: bool = False,
    ) -> None:
        """Prepare; `picker` is the unique id of this process, `shareables` returns the components in use.

        With `defers`, components that only decisions need are not updated until `apply_deferred`.
        """
        self.picker = picker
        self.salt = salt
        self.counts: Counter[str] = Counter(dict.fromkeys(COUNTS, 0))
        self.last_age: float | None = None
        """Age of the last batch when it was applied, in seconds."""
        self.changed_at = -inf
        """Last time at which any picker reported more than its presence."""
        self.on_news: Callable[[], None] = lambda: None
        """Called after changes of another picker that waits for an answer."""
        self._shareables = shareables
        self._snapshot = snapshot
        self._clock = clock
        self._defers = defers
        self._known: tuple[Shareable, ...] = ()
        """Components in use at the last check."""
        self._joined: dict[str, Shareable] = {}
        self._peers: dict[str, _Peer] = {}
        self._sequence = 0
        self._sent_at = self._renewed_at = -inf
        self._logged: set[str] = set()
        self.is_lost = False
        """Whether the other pickers cannot be reached."""
        self._join()

    @property
    def peers(self) -> int:
        """Number of other pickers that sent a batch recently."""
        return len(self._peers)

    @property
    def batch_seconds(self) -> float:
        """Least time between two batches, by the number of pickers."""
        return BATCH_SECONDS * max(1.0, len(self._peers) / _PEERS_AT_FULL_RATE)

    @property
    def deferred(self) -> Sequence[Shareable]:
        """Components that `apply_deferred` updates."""
        self._join()
        return [each for each in self._joined.values() if self._defers and each.is_for_decisions]

    def use_salt(self, salt: int) -> None:
        """Hash with this salt from now on, as the other pickers do."""
        if salt != self.salt:
            self.salt = salt
            self._known = ()
            self._joined.clear()
        self._join()

    def connection(self, *, is_lost: bool) -> None:
        """Notify components whether the other pickers can be reached."""
        if is_lost != self.is_lost:
            self.is_lost = is_lost
            for each in self._joined.values():
                each.connection(is_lost=is_lost)

    def renew(self) -> None:
        """Send the whole state with the next batches."""
        self._renewed_at = -inf

    def collect(self, *, is_last: bool = False) -> bytes | None:
        """Return the next batch; None if there is nothing to send."""
        now = self._clock.now()
        self._join()
        if renews := now - self._renewed_at >= _HEARTBEAT_SECONDS:
            self._renewed_at = now
            for each in self._joined.values():
                each.renew()
        snapshot = self._snapshot()
        parts = {}
        for name, each in self._joined.items():
            try:
                payload = each.changes(snapshot)
            except Exception as error:  # noqa: BLE001  a plugin may raise anything
                self._refuse(f"{name}: its changes are not shared", error)
            else:
                if payload:
                    parts[name] = payload
        if not parts and not is_last and now - self._sent_at < _HEARTBEAT_SECONDS:
            return None
        self._sent_at = now
        if parts and not renews:
            self.changed_at = now
        self._sequence += 1
        return _encode(Batch(_FORMAT, self.picker, self._sequence, parts, is_last))

    def collect_all(self) -> Sequence[bytes]:
        batch = self.collect()
        return () if batch is None else (batch,)

    def apply(self, data: bytes, age_seconds: float, known: Container[str] = ()) -> bool:
        """Apply a batch that its picker sent `age_seconds` ago; return whether it was new.

        An invalid batch is counted and ignored; batches of the `known` pickers were applied before.
        """
        try:
            batch = _read(data)
        except (ValueError, msgspec.MsgspecError) as error:
            self._refuse("a batch is not used", error)
            return False
        if batch.picker == self.picker or batch.picker in known:
            return False
        is_recent = age_seconds < SILENCE_SECONDS and not batch.is_last
        if is_recent and not self._is_next(batch, age_seconds):
            return False
        self.last_age = age_seconds
        self.counts["applied"] += 1
        self.counts["bytes_in"] += len(data)
        snapshot = self._snapshot()
        for name, payload in batch.parts.items():
            each = self._joined.get(name)
            if each is None or not (is_recent or each.is_lasting) or (self._defers and each.is_for_decisions):
                continue
            self._apply_part(each, batch.picker, payload, snapshot)
        if not is_recent:
            self._forget(batch.picker)
        return True

    def apply_deferred(self, data: bytes) -> None:
        """Apply the parts of a batch that are for the `deferred` components."""
        batch, snapshot = _read(data), self._snapshot()
        for each in self.deferred:
            if each.share_name in batch.parts:
                self._apply_part(each, batch.picker, batch.parts[each.share_name], snapshot)

    def farewell(self, picker: str) -> bytes | None:
        """Return the last batch of another picker that ended without sending it; None for an unknown picker."""
        peer = self._peers.get(picker)
        return None if peer is None else _encode(Batch(_FORMAT, picker, peer.sequence + 1, {}, is_last=True))

    def sweep(self) -> None:
        """Forget pickers that have been silent."""
        earliest = self._clock.now() - SILENCE_SECONDS
        for picker in [picker for picker, peer in self._peers.items() if peer.received_at < earliest]:
            self._forget(picker)

    def _apply_part(self, each: Shareable, picker: str, payload: bytes, snapshot: Snapshot) -> None:
        try:
            entries = each.apply(picker, payload, snapshot)
        except Exception as error:  # noqa: BLE001  plugins read bytes of another process
            self._refuse(f"{each.share_name}: a payload is not used", error)
            return
        self.counts["entries"] += entries
        if entries:
            self.changed_at = self._clock.now()
            if each.is_answered:
                self.on_news()

    def _is_next(self, batch: Batch, age_seconds: float) -> bool:
        """Record the sequence number of a batch; return whether the batch is new."""
        received_at = self._clock.now() - age_seconds
        peer = self._peers.get(batch.picker)
        if peer is None:
            if len(self._peers) >= _MOST_PEERS:
                self._refuse("a batch is not used", ValueError(f"there are more than {_MOST_PEERS} other pickers"))
                return False
            self._peers[batch.picker] = _Peer(batch.sequence, received_at)
            return True
        missed = batch.sequence - peer.sequence - 1
        if missed < 0:
            self.counts["repeated"] += 1
            return False
        self.counts["lost"] += missed
        peer.sequence, peer.received_at = batch.sequence, received_at
        return True

    def _forget(self, picker: str) -> None:
        self._peers.pop(picker, None)
        for each in self._joined.values():
            each.forget(picker)

    def _join(self) -> None:
        """Update the components in use, which change with the configuration."""
        current = self._shareables()
        if current == self._known:
            return
        self._known = current
        found: Mapping[str, Shareable] = {each.share_name: each for each in current}
        for name, each in found.items():
            if self._joined.get(name) is not each:
                each.join(self.salt)
                each.renew()
                if self.is_lost:
                    each.connection(is_lost=True)
        self._joined = dict(found)

    def _refuse(self, what: str, error: Exception) -> None:
        """Count a refusal, and log the first of its kind."""
        self.counts["refused"] += 1
        kind = f"{what}: {type(error).__name__}"
        if kind not in self._logged and len(self._logged) < _MOST_PARTS:
            self._logged.add(kind)
            reason = " ".join(str(error).split())[:_MOST_REASON]
            _log.warning("shared state of another picker cannot be used", what=what, reason=reason)
