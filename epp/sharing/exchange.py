# SPDX-License-Identifier: Apache-2.0
"""Batches of the changes of a picker, and those of others; no I/O, and no knowledge of their transport."""

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
"""Longest time without a batch; also the time after which the whole state is told again."""
SILENCE_SECONDS = 5.0
"""Time without a batch after which a picker is forgotten, except its lasting state."""
_MOST_PEERS = 256
_MOST_PARTS = 64
"""Shareable components of one picker."""
_MOST_BATCH_BYTES = _MOST_PARTS * (MOST_PAYLOAD_BYTES + 256)
_MOST_NAME, _MOST_REASON = 256, 200
COUNTS = ("published", "bytes_out", "applied", "bytes_in", "entries", "lost", "repeated", "refused")
"""Names of counts: batches, their bytes, entries in them, and batches that were not applied."""
_FORMAT = f"1{sys.byteorder[0]}"
"""Version of batches, and order of the bytes of hashes."""

_log = structlog.get_logger()


class Batch(msgspec.Struct, frozen=True, array_like=True):
    """Changes of one picker in one interval."""

    format: str
    picker: str
    sequence: int
    """Counts batches, from 1."""
    parts: dict[str, bytes]
    """Payloads by the `share_name` of their component."""
    is_last: bool = False
    """Whether the picker ends."""


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Batch).decode


def _read(data: bytes) -> Batch:
    """Return a batch; raises ValueError or MsgspecError for an invalid one, or one that is too large."""
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
    heard_at: float


class Exchange:
    """Collects the changes of shareable components in batches, and applies the batches of other pickers.

    A batch that is lost, repeated or late does no lasting harm: numbers are told as a whole again each second, repeated
    batches are recognised by their sequence, and a silent picker is forgotten.
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
        """Prepare; `picker` is another id for each process, `shareables` returns the components in use.

        With `defers`, what only decisions need is not applied until `apply_deferred`.
        """
        self.picker = picker
        self.salt = salt
        self.counts: Counter[str] = Counter(dict.fromkeys(COUNTS, 0))
        self.last_age: float | None = None
        """Seconds that the last applied batch took."""
        self.changed_at = -inf
        """Last time at which any picker reported more than its presence."""
        self.on_news: Callable[[], None] = lambda: None
        """Called after changes of another picker for which it waits for an answer."""
        self._shareables = shareables
        self._snapshot = snapshot
        self._clock = clock
        self._defers = defers
        self._known: tuple[Shareable, ...] = ()
        """The components in use when they were last looked at."""
        self._joined: dict[str, Shareable] = {}
        self._peers: dict[str, _Peer] = {}
        self._sequence = 0
        self._told_at = self._renewed_at = -inf
        self._logged: set[str] = set()
        self.is_lost = False
        """Whether other pickers are not reached."""
        self._join()

    @property
    def peers(self) -> int:
        """The number of other pickers that were heard lately."""
        return len(self._peers)

    @property
    def batch_seconds(self) -> float:
        """The least time between two batches, by the number of pickers."""
        return BATCH_SECONDS * max(1.0, len(self._peers) / _PEERS_AT_FULL_RATE)

    @property
    def deferred(self) -> Sequence[Shareable]:
        """The components that `apply_deferred` is for."""
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
        """Tell components whether the other pickers are reached."""
        if is_lost != self.is_lost:
            self.is_lost = is_lost
            for each in self._joined.values():
                each.connection(is_lost=is_lost)

    def renew(self) -> None:
        """Tell the whole state with the next batches."""
        self._renewed_at = -inf

    def collect(self, *, is_last: bool = False) -> bytes | None:
        """Return the next batch; None while there is nothing to tell."""
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
        if not parts and not is_last and now - self._told_at < _HEARTBEAT_SECONDS:
            return None
        self._told_at = now
        if parts and not renews:
            self.changed_at = now
        self._sequence += 1
        return _encode(Batch(_FORMAT, self.picker, self._sequence, parts, is_last))

    def collect_all(self) -> Sequence[bytes]:
        batch = self.collect()
        return () if batch is None else (batch,)

    def apply(self, data: bytes, age_seconds: float, but: Container[str] = ()) -> bool:
        """Apply a batch that left its picker so long ago; return whether it was news.

        An invalid one is counted, and nothing of it is used; those of the pickers in `but` are known already.
        """
        try:
            batch = _read(data)
        except (ValueError, msgspec.MsgspecError) as error:
            self._refuse("a batch is not used", error)
            return False
        if batch.picker == self.picker or batch.picker in but:
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
        """Apply the parts of a batch for the `deferred` components."""
        batch, snapshot = _read(data), self._snapshot()
        for each in self.deferred:
            if each.share_name in batch.parts:
                self._apply_part(each, batch.picker, batch.parts[each.share_name], snapshot)

    def farewell(self, picker: str) -> bytes | None:
        """Return the last batch of another picker that ended without one; None for an unknown one."""
        peer = self._peers.get(picker)
        return None if peer is None else _encode(Batch(_FORMAT, picker, peer.sequence + 1, {}, is_last=True))

    def sweep(self) -> None:
        """Forget pickers that have been silent."""
        earliest = self._clock.now() - SILENCE_SECONDS
        for picker in [picker for picker, peer in self._peers.items() if peer.heard_at < earliest]:
            self._forget(picker)

    def _apply_part(self, each: Shareable, picker: str, payload: bytes, snapshot: Snapshot) -> None:
        try:
            entries = each.apply(picker, payload, snapshot)
        except Exception as error:  # noqa: BLE001  from outside, into plugins
            self._refuse(f"{each.share_name}: a payload is not used", error)
            return
        self.counts["entries"] += entries
        if entries:
            self.changed_at = self._clock.now()
            if each.is_answered:
                self.on_news()

    def _is_next(self, batch: Batch, age_seconds: float) -> bool:
        """Note a batch of a peer; return whether it is news."""
        heard_at = self._clock.now() - age_seconds
        peer = self._peers.get(batch.picker)
        if peer is None:
            if len(self._peers) >= _MOST_PEERS:
                self._refuse("a batch is not used", ValueError(f"there are more than {_MOST_PEERS} other pickers"))
                return False
            self._peers[batch.picker] = _Peer(batch.sequence, heard_at)
            return True
        missed = batch.sequence - peer.sequence - 1
        if missed < 0:
            self.counts["repeated"] += 1
            return False
        self.counts["lost"] += missed
        peer.sequence, peer.heard_at = batch.sequence, heard_at
        return True

    def _forget(self, picker: str) -> None:
        self._peers.pop(picker, None)
        for each in self._joined.values():
            each.forget(picker)

    def _join(self) -> None:
        """Follow the components in use, which change with the configuration."""
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
