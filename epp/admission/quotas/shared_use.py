# SPDX-License-Identifier: Apache-2.0
"""Exchange of the use of quotas with the other pickers of the pool."""

from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from math import inf

import msgspec

from epp.admission.quotas.account import Account
from epp.admission.quotas.peer_use import Entry, Group, WhenAlone
from epp.admission.quotas.quota_ledger import QuotaLedger
from epp.admission.quotas.usage import NO_USE
from epp.framework.clock import Clock
from epp.framework.sharing import Shareable
from epp.framework.snapshot import Snapshot

_MOST_ENTRY_BYTES = 20 * 1024
"""Size of the entries from which no more are added to a payload, which also has the versions of 256 pickers."""
_WHOLE_RENEWALS = 60
"""Seconds until all use is sent again, so that pickers that start find it in the history of the transport."""
_FORGOTTEN_SECONDS = 5.0
"""Time for which the use of silent pickers is kept after contact returns."""


class _Payload(msgspec.Struct, frozen=True, array_like=True):
    version: int
    """Number of the payload, from 1."""
    first: int
    """First version of the current transmission of all use."""
    is_whole: bool
    """Whether all use has been sent since `first`."""
    received: dict[str, int]
    """Last version received from each other picker; 0 if an earlier one is missing."""
    entries: list[msgspec.Raw]


@dataclass(slots=True)
class _Peer:
    name: str
    version: int = 0
    run: int = 0
    """First of the versions that arrived without a gap."""
    first: int = 0
    is_whole: bool = False
    """Whether all of its use was received."""
    acknowledged: int = 0
    """Own version up to which it has received all."""
    is_gone: bool = False
    """Whether it was forgotten while there was no contact; its use is then kept for some time."""
    tenants: set[str] = field(default_factory=set)
    """Tenants that it has reported since `first`."""
    missing: set[str] = field(default_factory=set)
    """Tenants that it reported before `first`, and not since."""

    def note(self, payload: _Payload, picker: str) -> None:
        is_next = payload.version == self.version + 1
        if not is_next:
            self.run = payload.version
        if payload.first != self.first:
            self.missing |= self.tenants
            self.tenants.clear()
        self.version, self.first, self.is_gone = payload.version, payload.first, False
        self.is_whole = self.run <= self.first and (payload.is_whole or (is_next and self.is_whole))
        self.acknowledged = payload.received.get(picker, 0)

    @property
    def received(self) -> int:
        """Its latest version; 0 if an earlier one is missing."""
        return self.version if self.run <= self.first else 0


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Payload).decode
_decode_entry = msgspec.msgpack.Decoder(Entry).decode


class SharedUse(Shareable):
    """Sends this picker's use of changed quotas, in absolute numbers, and the versions received from other pickers.

    The unconfirmed use of this picker is limited; see `peer_use`.
    """

    share_name = "quotas"
    is_lasting = True
    is_answered = True

    def __init__(self, ledger: QuotaLedger, clock: Clock, picker: str, when_alone: WhenAlone) -> None:
        self._ledger = ledger
        self._clock = clock
        self._group = ledger.group = Group(picker, when_alone)
        self._peers: dict[str, _Peer] = {}
        self._version, self._first = 0, 1
        self._resending: dict[str, None] = {}
        """Tenants whose use must be sent again."""
        self._whole_due = self._answer_due = False
        self._sent_whole = True
        self._unconfirmed: dict[str, Account] = {}
        """Accounts whose use some other pickers may not have received."""
        self._known = 0
        """Version that all other pickers have received."""
        self._found_at = -inf
        self._renewals = 0

    def renew(self) -> None:
        """Announce this picker; each minute, and if another picker missed a payload, send all use again."""
        self._renewals += 1
        self._answer_due = True
        missed = any(peer.acknowledged < self._first for peer in self._peers.values() if not peer.is_gone)
        if missed or self._renewals % _WHOLE_RENEWALS == 0:
            self._whole_due = True
        if not self._is_cut_off:
            for name in [name for name, peer in self._peers.items() if peer.is_gone]:
                self.forget(name)

    def changes(self, snapshot: Snapshot) -> bytes | None:  # noqa: ARG002  no endpoints
        """Return the changed use of about 200 tenants."""
        version = self._version + 1
        if self._whole_due:
            self._begin_whole(version)
        entries: list[msgspec.Raw] = []
        size = 0
        for tenants in (self._ledger.changed, self._resending):
            while tenants and size < _MOST_ENTRY_BYTES:
                tenant = next(iter(tenants))
                del tenants[tenant]
                entry = _encode(self._entry(tenant, version, with_others=tenants is self._resending))
                entries.append(msgspec.Raw(entry))
                size += len(entry)
        is_whole = not self._resending
        if not (entries or self._answer_due or is_whole != self._sent_whole):
            return None
        self._version, self._answer_due, self._sent_whole = version, False, is_whole
        if not self._peers:
            self._confirm(version)
        received = {name: peer.received for name, peer in self._peers.items()}
        return _encode(_Payload(version, self._first, is_whole, received, entries))

    def apply(self, peer: str, payload: bytes, snapshot: Snapshot) -> int:  # noqa: ARG002  no endpoints
        sent = _decode(payload)
        entries = [_decode_entry(entry) for entry in sent.entries]
        known = self._peers.get(peer)
        if known is None:
            known = self._peers[peer] = _Peer(peer)
            self._whole_due = self._answer_due = True
            self._group.pickers = len(self._peers) + 1
        self._answer_due |= bool(entries) or sent.first != known.first
        was_whole = known.is_whole
        known.note(sent, self._group.picker)
        for entry in entries:
            self._record(known, entry, is_new=was_whole and known.is_whole)
        if known.is_whole and known.missing:
            self._drop(known, known.missing)
            known.missing.clear()
        self._confirm_received()
        return len(entries)

    def forget(self, peer: str) -> None:
        """Drop the requests in flight of another picker; after a loss of contact, only some time after its return."""
        known = self._peers.get(peer)
        if known is None:
            return
        if self._is_cut_off:
            known.is_gone = True
            return
        del self._peers[peer]
        self._group.pickers = len(self._peers) + 1
        self._drop(known, known.tenants | known.missing)
        self._confirm_received()

    def connection(self, *, is_lost: bool) -> None:
        now = self._clock.now()
        self._group.lost_at = now if is_lost else None
        if not is_lost:
            self._found_at, self._whole_due = now, True
            for account in list(self._ledger.accounts):
                self._ledger.notify_release(account.tenant)

    @property
    def _is_cut_off(self) -> bool:
        """Whether contact is lost, or was a short time ago, so that silent pickers may still run."""
        return self._group.lost_at is not None or self._clock.now() - self._found_at <= _FORGOTTEN_SECONDS

    def _begin_whole(self, version: int) -> None:
        self._whole_due, self._first, today = False, version, self._ledger.calendar.today()
        self._resending = {
            account.tenant: None
            for account in self._ledger.accounts
            if account.peer_use is not None and (any(account.own(today)) or account.peer_use.days(today))
        }
        for account in self._unconfirmed.values():
            if account.peer_use is not None:
                account.peer_use.resend()
        self._unconfirmed.clear()

    def _entry(self, tenant: str, version: int, *, with_others: bool) -> Entry:
        account = self._ledger.accounts.get(tenant)
        if account is None or account.peer_use is None:
            return Entry(tenant, 0, NO_USE, 0, 0)
        own, today = account.peer_use, self._ledger.calendar.today()
        use = account.own(today)
        own.record_sent(use, version)
        self._unconfirmed[tenant] = account
        content = account.minute_content(self._clock.now())
        others = own.days(today) if with_others else ()
        return Entry(tenant, own.born, use.brief(), content, self._ledger.calendar.date, others)

    def _record(self, peer: _Peer, entry: Entry, *, is_new: bool) -> None:
        """Record the use of one tenant; `is_new` means that use without an earlier record is new."""
        accounts, now = self._ledger.accounts, self._clock.now()
        account = accounts.get(entry.tenant)
        if account is None:
            allowance = self._ledger.allowances.of(entry.tenant) if any(entry.use) or entry.others else None
            if allowance is None:
                return
            account = self._ledger.new_account(entry.tenant, allowance.quota)
        if account.peer_use is None:
            return
        calendar, limit = self._ledger.calendar, account.limits.minute_tokens
        added = account.peer_use.record(peer.name, entry, calendar.today(), is_today=entry.date == calendar.date)
        if limit > 0:
            if added is None and is_new:
                added = min(entry.use.minute_tokens, entry.minute_content)
            elif added is None:  # the content has tokens of other pickers, which may be counted already
                added = max(0.0, entry.minute_content - account.minute_content(now))
            account.minute.add_by_peers(added, limit, now)
        peer.tenants.add(account.tenant)
        peer.missing.discard(account.tenant)
        if not account.in_flight.requests:
            accounts.release(account)
        self._ledger.notify_release(account.tenant, account.quota)

    def _drop(self, peer: _Peer, tenants: AbstractSet[str]) -> None:
        """Drop the use of these tenants at another picker, except that of the day."""
        for tenant in tenants:
            account = self._ledger.accounts.get(tenant)
            if account is not None and account.peer_use is not None:
                account.peer_use.forget(peer.name)
                self._ledger.notify_release(tenant)

    def _confirm_received(self) -> None:
        """Confirm the version that all other pickers have received."""
        self._ledger.joint.clear()
        peers = self._peers.values()
        if not peers:
            self._confirm(self._version)
        elif all(peer.is_whole for peer in peers):
            known = min(peer.acknowledged for peer in peers)
            if known != self._known:
                self._confirm(known)

    def _confirm(self, version: int) -> None:
        self._known = version
        for tenant, account in list(self._unconfirmed.items()):
            if account.peer_use is None or account.peer_use.confirm(version):
                del self._unconfirmed[tenant]
            self._ledger.notify_release(tenant)
