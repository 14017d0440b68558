# SPDX-License-Identifier: Apache-2.0
"""The ledger, which charges requests to the accounts of their tenants and refunds them."""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import islice

from epp.admission.quotas.account import Account
from epp.admission.quotas.accounts import Accounts, Alerts, JointMemory
from epp.admission.quotas.limits import blocked
from epp.admission.quotas.peer_use import Group
from epp.admission.quotas.reservation import (
    Place,
    QuotaObserver,
    Reservation,
    Share,
    SharedTime,
    Spent,
    devices,
    dollars_per_second,
    hardware_of,
)
from epp.admission.quotas.usage import DAY_PART, NO_USE, Allowance, Allowances, Calendar, LimitKey, Use
from epp.framework.accelerators.tag import AcceleratorTag
from epp.framework.clock import Clock
from epp.framework.quotas import Blocked, Quota
from epp.framework.request import Request, Usage
from epp.framework.snapshot import ACCELERATOR, Snapshot

_MOST_SWEPT = 50
"""Requests in flight, idle accounts, and alerts that are processed in one sweep, which takes a few milliseconds."""
_MOST_CHANGED = 20_000
"""Largest number of tenants whose changed use is not sent yet."""
_ALERT_WEIGHT = 1e-3
"""Weight of an account that has only an alert."""


class QuotaLedger:
    """Accounts of tenants, and the charges of their requests."""

    def __init__(self, clock: Clock, allowances: Allowances, observer: QuotaObserver) -> None:
        self._clock = clock
        self._observer = observer
        self.allowances = allowances
        self.calendar = Calendar(clock)
        self.alerts = Alerts(observer)
        self.accounts = Accounts(self._weigh, self.alerts.forget)
        self.joint = JointMemory(self.accounts, self.calendar.today)
        self.on_release: Callable[[str], None] | None = None
        """Called with the name of a tenant when a part of its quota, or of one that it shares, is released."""
        self._times: dict[str, SharedTime] = {}
        """Clocks of the endpoints with requests, by endpoint id."""
        self._unsettled: OrderedDict[Reservation, None] = OrderedDict()
        """Requests whose time is charged to a day, the most recently charged last."""
        self.requests = 0
        """Number of requests in flight, including those of tenants without a quota."""
        self.group: Group | None = None
        """Pickers that share the use; None if it is not shared."""
        self.changed: dict[str, None] = {}
        """Tenants whose use has changed since it was last sent to other pickers."""

    @property
    def endpoints(self) -> int:
        return len(self._times)

    def account_of(self, tenant: str, quota: Quota) -> Account | None:
        account = self.accounts.get(tenant)
        if account is not None and account.quota is not quota:
            account.set_quota(quota)
        return account

    def new_account(self, tenant: str, quota: Quota) -> Account:
        """Return a new account, which is not kept yet."""
        return Account(tenant, quota, peer_use=None if self.group is None else self.group.new_use())

    def held(self, account: Account, request: Request, now: float) -> Use:
        """Return the amounts that are kept for other requests, which count while requests are in flight.

        These are requests of higher priority of the same tenant, of other pickers and of other tenants. The amounts of
        the minute and of the day have no meaning.
        """
        nominations, held = account.nominations, NO_USE
        if len(nominations):
            nominations.forget_before(now)
            held = nominations.held_against(request)
        if account.peer_use is not None:
            used, reserved = account.unavailable(now, self.calendar.today())
            held = held.plus(used).plus(reserved)
        if account.quota.shared:
            own = account.limits.accelerator_bytes
            beyond = (self.joint.of_others(every, account.tenant) + own - most for every, most in account.quota.shared)
            held = held._replace(accelerator_bytes=held.accelerator_bytes + max(0.0, *beyond))
        return held

    def assume(
        self, request: Request, snapshot: Snapshot, slot: int, legs: Sequence[int] = ()
    ) -> Reservation | Blocked:
        """Charge a request that is routed to a slot, and to the slots of its other legs, if it still fits.

        Must be called for requests of tenants without a quota too, since they share the time of endpoints.
        """
        now, slots = self._clock.now(), (slot, *legs)
        allowance = self.allowances.of(request.fairness_id)
        tags = snapshot.records(ACCELERATOR).values
        if allowance is None:
            places = [self._place(snapshot, slot, Share(tags[slot]), now) for slot in slots]
            self.requests += 1
            return Reservation(self, request, places)
        account, shares, need, refusal = self._check(request, allowance, [tags[slot] for slot in slots], now)
        if refusal is not None:
            return refusal
        places = [self._place(snapshot, slot, share, now) for slot, share in zip(slots, shares, strict=True)]
        self.requests += 1
        reservation = Reservation(self, request, places)
        reservation.requests_per_endpoint = allowance.requests_per_endpoint
        account.nominations.forget(request)
        account.charge(reservation, need, now)
        self.joint.add(account.tenant, need.accelerator_bytes)
        self._note_change(account)
        self.accounts.busy(account)
        if any(account.limits[DAY_PART:]):
            self._unsettled[reservation] = None
        _note_uncounted(account, reservation)
        self.alerts.check(account, now, self.calendar.today())
        self._observer.charged(reservation)
        return reservation

    def refusal(self, request: Request, snapshot: Snapshot, slots: Sequence[int]) -> Blocked | None:
        """Return the limit that `assume` would return for these slots, the target first; None if the request fits."""
        allowance = self.allowances.of(request.fairness_id)
        if allowance is None:
            return None
        tags = snapshot.records(ACCELERATOR).values
        return self._check(request, allowance, [tags[slot] for slot in slots], self._clock.now())[3]

    def answered(self, reservation: Reservation) -> None:
        """Refund the legs that end when the response starts."""
        if len(reservation.places) > 1:
            self._leave(reservation, reservation.places[1:])
            self._recharge(reservation)

    def moved(self, reservation: Reservation, snapshot: Snapshot, slot: int) -> None:
        """Charge the endpoint that serves in place of the target, even beyond a limit, since it has the request."""
        now = self._clock.now()
        tag = snapshot.records(ACCELERATOR).values[slot]
        sharers = reservation.requests_per_endpoint
        place = self._place(snapshot, slot, Share.of(tag, sharers) if sharers else Share(tag), now)
        self._leave(reservation, reservation.places[:1])
        reservation.places.insert(0, place)
        self._recharge(reservation)

    def released(self, reservation: Reservation, usage: Usage | None, *, unserved: bool) -> None:
        """Refund a request that has ended, once."""
        self.requests -= 1
        self._unsettled.pop(reservation, None)
        self._leave(reservation, list(reservation.places))
        account = self._charged_account(reservation)
        if account is None:
            return
        now = self._clock.now()
        self.joint.add(account.tenant, -reservation.charged.accelerator_bytes)
        account.give_back(reservation, usage, now, unserved=unserved)
        if account.counts_over_time:
            self.alerts.check(account, now, self.calendar.today())
        if not account.in_flight.requests:
            self.accounts.release(account)
        self._observer.released(reservation)
        self.notify_release(reservation.tenant, account.quota)

    def notify_release(self, tenant: str, quota: Quota | None = None) -> None:
        """Notify the listener that a tenant, and the tenants that share a limit with it, have more quota."""
        others = (name for limit in (quota.shared if quota else ()) for name in sorted(limit.tenants))
        if self.on_release is not None:
            for each in dict.fromkeys((tenant, *others)):
                self.on_release(each)

    def sweep(self) -> None:
        """Charge the time of some long requests, end alerts, and drop idle accounts; call this every 3 seconds."""
        self.joint.clear()
        now, today = self._clock.now(), self.calendar.today()
        for reservation in list(islice(self._unsettled, _MOST_SWEPT)):
            self._unsettled.move_to_end(reservation)
            account = self._charged_account(reservation)
            if account is not None:
                for place in reservation.places:
                    spent = place.spend(now)
                    reservation.spent.add(spent)
                    account.spend(reservation, spent, today)
                self._note_change(account)
                self.alerts.check(account, now, today)
        self.alerts.sweep(now, today, _MOST_SWEPT)
        self.accounts.tidy(_MOST_SWEPT)

    def _check(
        self, request: Request, allowance: Allowance, tags: Sequence[AcceleratorTag], now: float
    ) -> tuple[Account, list[Share], Use, Blocked | None]:
        """Return the need of a request, and the limit that it exceeds."""
        quota, sharers = allowance
        account = self.account_of(request.fairness_id, quota) or self.new_account(request.fairness_id, quota)
        shares = [Share.of(tag, sharers) for tag in tags]
        need = account.need(request, *hardware_of(shares))
        return account, shares, need, blocked(account, need, self.held(account, request, now), now, self.calendar)

    def _charged_account(self, reservation: Reservation) -> Account | None:
        return self.accounts.get(reservation.tenant) if reservation.is_limited else None

    def _note_change(self, account: Account) -> None:
        if account.peer_use is not None:
            if len(self.changed) >= _MOST_CHANGED:  # without contact; all use is sent after contact returns
                self.changed.clear()
            self.changed[account.tenant] = None

    def _place(self, snapshot: Snapshot, slot: int, share: Share, now: float) -> Place:
        endpoint = snapshot.endpoints.values[slot]
        name = "" if endpoint is None else endpoint.id
        return Place(self._times.get(name) or SharedTime(name, self._times), share, now)

    def _leave(self, reservation: Reservation, places: list[Place]) -> None:
        now, spent = self._clock.now(), Spent()
        for place in places:
            reservation.places.remove(place)
            spent.add(place.leave(now))
        reservation.spent.add(spent)
        account = self._charged_account(reservation)
        if account is not None:
            account.spend(reservation, spent, self.calendar.today())
            self._note_change(account)

    def _recharge(self, reservation: Reservation) -> None:
        account = self._charged_account(reservation)
        if account is None:
            return
        memory, tflops = hardware_of([place.share for place in reservation.places])
        self.joint.add(account.tenant, memory - reservation.charged.accelerator_bytes)
        account.recharge(reservation, reservation.charged._replace(accelerator_bytes=memory, tflops=tflops))
        self.notify_release(reservation.tenant, account.quota)

    def _weigh(self, account: Account) -> float:
        now = self._clock.now()
        account.nominations.forget_before(now)
        if len(account.nominations):
            return 1.0
        return max(account.weight(now, self.calendar.today()), _ALERT_WEIGHT if account.alerts else 0.0)


def _note_uncounted(account: Account, reservation: Reservation) -> None:
    """Count a request that cannot be charged to a limit, since the hardware or price of its endpoint is unknown."""
    limits, share = account.limits, reservation.places[0].share
    if not share.accelerator_bytes and limits.accelerator_bytes > 0:
        account.uncounted[LimitKey.TOTAL_ACCELERATOR_BYTES] += 1
    if not share.tflops and limits.tflops > 0:
        account.uncounted[LimitKey.TOTAL_TFLOPS] += 1
    if limits.device_seconds > 0 and not devices(share.tag):
        account.uncounted[LimitKey.TOTAL_DEVICE_SECONDS] += 1
    if (limits.dollars > 0 or account.quota.single.dollars > 0) and not dollars_per_second(share.tag):
        account.uncounted[LimitKey.TOTAL_DOLLARS] += 1
