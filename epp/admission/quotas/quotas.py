# SPDX-License-Identifier: Apache-2.0
"""Enforcement of quotas, and the report of their usage."""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

import msgspec

from epp.admission.quotas.account import Account
from epp.admission.quotas.allowances import Allowance, Allowances
from epp.admission.quotas.limits import (
    Bound,
    beside,
    blocked,
    check_hardware,
    check_tokens,
    deficit,
    hardware_bounds,
    joint_mask,
    least,
    waits_for_time,
)
from epp.admission.quotas.quota_ledger import QuotaLedger
from epp.admission.quotas.reservation import QuotaObserver, Reservation
from epp.admission.quotas.victims import MOST_ASKED, MOST_CONSIDERED, fewest
from epp.framework.arrays import Mask
from epp.framework.breach import Breach
from epp.framework.candidates import Candidates
from epp.framework.clock import Clock
from epp.framework.errors import OverQuotaError
from epp.framework.guard import Guard
from epp.framework.quotas import Blocked, Quota, QuotaSource
from epp.framework.request import Request
from epp.framework.snapshot import Snapshot


class QuotaUsage(msgspec.Struct, frozen=True, kw_only=True):
    """One limit on the total of a tenant, and what is used of it."""

    tenant: str
    key: str
    """Name of the limit."""
    used: float
    limit: float
    is_alerting: bool = False
    """Whether it is almost used up, or was a short time ago."""
    is_set: bool = False
    """Whether the quota was set at run time."""
    origin: str = ""
    """Who says so, for people."""
    uncounted: int = 0
    """Requests that took nothing of it, as the hardware or price of their endpoint is not known."""

    @property
    def headroom(self) -> float:
        """What is left; negative for a debt, or a limit that was lowered below its use."""
        return self.limit - self.used

    @property
    def available_percent(self) -> float:
        """Share of the limit that is left, from 0 to 100."""
        return max(0.0, 100.0 * self.headroom / self.limit)


class Adjustment(msgspec.Struct, frozen=True, kw_only=True):
    """A change of a quota at run time, and what it means now."""

    tenant: str
    before: Quota | None
    """The quota so far; None for whatever the tenant wants."""
    after: Quota | None
    lines: tuple[QuotaUsage, ...]
    """Use and headroom of each limit of the quota after."""
    breaches: tuple[Breach, ...]
    """Limits that are below what is used now: new requests are refused until that has ended."""
    is_applied: bool
    """Whether it is in effect; not for a dry run."""


def lines(account: Account, now: float, today: int, *, is_set: bool) -> tuple[QuotaUsage, ...]:
    """Return a line for each limit of an account's quota."""
    return tuple(
        [
            QuotaUsage(
                tenant=account.tenant,
                key=key.value,
                used=used,
                limit=limit,
                is_alerting=key in account.alerts,
                is_set=is_set,
                origin=account.quota.origin,
                uncounted=account.uncounted.get(key, 0),
            )
            for key, used, limit in account.uses(now, today)
        ]
    )


def breaches(found: tuple[QuotaUsage, ...]) -> tuple[Breach, ...]:
    """Return those of the limits that are below what is used."""
    return tuple([Breach(line.tenant, line.key, line.used, line.limit) for line in found if line.used > line.limit])


NOMINATION_SECONDS = 5.0
"""How long what victims gave back is held for the request that they were ended for."""
_NO_QUOTA = Quota()
_MOST_REPORTED = 1_000
"""Tenants in a report: those with requests under way first."""


class Quotas:
    """One for the life of the process: what is under way stays charged, whatever quotas say next.

    The tenant of a request is its fairness id. Nothing here waits, so that what is checked and charged in one call is
    so for all requests of an event loop.
    """

    def __init__(self, clock: Clock, *, guard: Guard, observer: QuotaObserver | None = None) -> None:
        self._clock = clock
        self._observer = observer or QuotaObserver()
        self._allowances = Allowances(guard)
        self._books = QuotaLedger(clock, self._observer)
        self.is_active = False
        """Whether any tenant may have a quota; nothing else has to be called where none has."""

    def use(self, sources: Sequence[QuotaSource[Any]]) -> None:
        """Go by these sources, the first that knows a tenant; quotas that were set at run time stay."""
        self._allowances.use(sources)
        self.is_active = self._allowances.is_active

    def twin(self, sources: Sequence[QuotaSource[Any]], *, guard: Guard) -> "Quotas":
        """Return what says now, by these sources, whether a request fits, and is not to be charged: for dry runs."""
        other = Quotas(self._clock, guard=guard)
        other._allowances = self._allowances.twin(guard, sources)
        other._books = self._books.twin()
        other.is_active = other._allowances.is_active
        return other

    def on_release(self, listener: Callable[[str], None] | None) -> None:
        """Tell a listener each tenant of whom something came back."""
        self._books.on_release = listener

    @property
    def requests(self) -> int:
        """Number of requests under way, those of tenants without a quota too."""
        return self._books.requests

    @property
    def tenants(self) -> int:
        """Number of tenants that anything is charged to."""
        return len(self._books.accounts)

    @property
    def endpoints(self) -> int:
        """Number of endpoints that requests under way share."""
        return self._books.endpoints

    def check_single(self, request: Request) -> None:
        """Refuse a request that is too large for its tenant, whatever else is under way; raises OverQuotaError."""
        allowance = self._allowances.of(request.fairness_id)
        if allowance is not None:
            try:
                check_tokens(request, allowance.quota)
            except OverQuotaError as error:
                self._observer.over_quota(request, error.breach)
                raise

    def breach(self, request: Request) -> Blocked | None:
        """Return what keeps a request from beginning wherever it goes; None for nothing. Changes nothing."""
        allowance = self._allowances.of(request.fairness_id)
        account = None if allowance is None else self._books.account_of(request.fairness_id, allowance.quota)
        return None if account is None else self._blocked(account, request)

    def fits_single(self, request: Request, candidates: Candidates) -> Mask | None:
        """Mark the candidates where a request is not too large by itself; None for all of them.

        Raises OverQuotaError where it is too large for all of one or more.
        """
        allowance = self._allowances.of(request.fairness_id)
        if allowance is None:
            return None
        bounds = self._bounds(allowance, request, candidates)
        if not bounds:
            return None
        mask = joint_mask(bounds)
        try:
            check_hardware(request, bounds, mask)
        except OverQuotaError as error:
            self._observer.over_quota(request, error.breach)
            raise
        return mask

    def fitting(self, request: Request, candidates: Candidates) -> Mask | None:
        """Mark the candidates where a request fits now, beside all that is under way; None for all of them."""
        allowance = self._allowances.of(request.fairness_id)
        if allowance is None:
            return None
        bounds = self._bounds(allowance, request, candidates)
        if not bounds:
            return None
        account = self._books.account_of(request.fairness_id, allowance.quota)
        return joint_mask(bounds if account is None else self._beside(account, request, bounds))

    def shortage(self, request: Request, candidates: Candidates) -> Blocked | None:
        """Return what keeps a request from the candidates where it is not too large; None where it fits at one."""
        allowance = self._allowances.of(request.fairness_id)
        account = None if allowance is None else self._books.account_of(request.fairness_id, allowance.quota)
        if allowance is None or account is None or not len(candidates):
            return None
        memory, tflops = self._least(allowance, account, request, candidates)
        return self._blocked(account, request, memory, tflops)

    def assume(
        self, request: Request, snapshot: Snapshot, slot: int, legs: Sequence[int] = ()
    ) -> Reservation | Blocked:
        """Charge a request that goes to a slot, and to those of its other legs, if it still fits.

        Requests of tenants without a quota are to be assumed too: they share the time of endpoints with others.
        """
        return self._books.assume(request, self._allowances.of(request.fairness_id), snapshot, (slot, *legs))

    def refusal(self, request: Request, snapshot: Snapshot, slots: Sequence[int]) -> Blocked | None:
        """Return what would keep a request from being assumed there, the target first; None for nothing."""
        return self._books.refusal(request, self._allowances.of(request.fairness_id), snapshot, slots)

    def victims(
        self,
        request: Request,
        may_end: Callable[[Reservation], bool],
        candidates: Candidates | None = None,
    ) -> list[Reservation] | None:
        """Return the fewest requests of the same tenant, of lower priority, whose end lets a request begin.

        They are the lowest, and of equal ones the newest. None where that is not possible, since time has to pass or
        too little may be ended; an empty list where the request fits already.
        """
        allowance = self._allowances.of(request.fairness_id)
        account = None if allowance is None else self._books.account_of(request.fairness_id, allowance.quota)
        if allowance is None or account is None:
            return []
        memory, tflops = 0.0, 0.0
        if candidates is not None and len(candidates):
            memory, tflops = self._least(allowance, account, request, candidates)
        found = self._blocked(account, request, memory, tflops)
        if found is None:
            return []
        now = self._clock.now()
        need = account.need(request, memory, tflops)
        if waits_for_time(account, need, now, self._books.calendar):
            return None
        missing = deficit(account, need.under_way, self._books.held(account, request, now))
        lower = islice(account.lowest_first(request.priority), MOST_ASKED)
        return fewest(missing, list(islice((each for each in lower if may_end(each)), MOST_CONSIDERED)))

    def nominate(self, request: Request, victims: Sequence[Reservation], seconds: float = NOMINATION_SECONDS) -> None:
        """Hold what victims give back for a request, against requests of its tenant of lower priority."""
        account = self._books.accounts.get(request.fairness_id)
        if account is not None and victims:
            account.nominations.add(request, victims, self._clock.now() + seconds)

    def forget_nomination(self, request: Request) -> None:
        """Hold nothing for a request any more: it has left, say."""
        account = self._books.accounts.get(request.fairness_id)
        if account is not None and account.nominations.forget(request):
            self._books.came_back(request.fairness_id)

    def adjust(self, tenant: str, quota: Quota | None, *, dry_run: bool = False) -> Adjustment:
        """Set the quota of a tenant until it is taken back with None; sources count again then.

        Requests under way end as they would have, even where they are more than the new quota. Raises
        ConfigurationError for a quota that cannot be, and where too many tenants have one that was set.
        """
        before = self._allowances.of(tenant)
        self._allowances.check(tenant, quota)
        if not dry_run:
            self._allowances.set(tenant, quota)
            self.is_active = self._allowances.is_active
        found = self._allowances.of_sources(tenant)
        after = quota or (None if found is None else found.quota)
        account = self._books.accounts.get(tenant) or Account(tenant, _NO_QUOTA)
        former, account.quota = account.quota, after or _NO_QUOTA
        shown = lines(account, self._clock.now(), self._books.calendar.today(), is_set=quota is not None)
        if dry_run:
            account.quota = former
        else:
            self._books.limits_changed(account)
            self._books.came_back(tenant)
        return Adjustment(
            tenant=tenant,
            before=None if before is None else before.quota,
            after=after,
            lines=shown,
            breaches=breaches(shown),
            is_applied=not dry_run,
        )

    def report(self, tenant: str | None = None, most: int = _MOST_REPORTED) -> tuple[QuotaUsage, ...]:
        """Return what is used of each limit on a total: of one tenant, or of those that anything is charged to."""
        now, today = self._clock.now(), self._books.calendar.today()
        if tenant is None:
            with_use = [account.tenant for account in islice(self._books.accounts, most)]
            unused = (each for each in self._allowances.set_quotas if self._books.accounts.get(each) is None)
            tenants = with_use + list(islice(unused, most - len(with_use)))
        else:
            tenants = [tenant]
        found: list[QuotaUsage] = []
        for each in tenants:
            allowance = self._allowances.of(each)
            if allowance is not None:
                account = self._books.account_of(each, allowance.quota) or Account(each, allowance.quota)
                found += lines(account, now, today, is_set=each in self._allowances.set_quotas)
        return tuple(found)

    def reservations(self, most: int = _MOST_REPORTED) -> Iterator[Reservation]:
        """Yield what requests of tenants with a quota hold, of `most` tenants."""
        for account in islice(self._books.accounts, most):
            yield from account.reservations()

    def quota_of(self, tenant: str) -> Quota | None:
        """Return the quota of a tenant; None for whatever it wants."""
        allowance = self._allowances.of(tenant)
        return None if allowance is None else allowance.quota

    def sweep(self) -> None:
        """Charge the time of some long requests, and drop some of what is not needed; to be called every 3 seconds."""
        self._books.sweep()

    def _blocked(
        self, account: Account, request: Request, accelerator_bytes: float = 0.0, tflops: float = 0.0
    ) -> Blocked | None:
        now = self._clock.now()
        need, held = account.need(request, accelerator_bytes, tflops), self._books.held(account, request, now)
        return blocked(account, need, held, now, self._books.calendar)

    def _bounds(self, allowance: Allowance, request: Request, candidates: Candidates) -> list[Bound]:
        mean = 0.0
        if allowance.quota.single.dollars > 0:
            account = self._books.account_of(request.fairness_id, allowance.quota)
            mean = 0.0 if account is None else account.means.seconds
        return list(hardware_bounds(allowance, candidates, mean))

    def _beside(self, account: Account, request: Request, bounds: list[Bound]) -> list[Bound]:
        return beside(account, self._books.held(account, request, self._clock.now()), bounds)

    def _least(
        self, allowance: Allowance, account: Account, request: Request, candidates: Candidates
    ) -> tuple[float, float]:
        bounds = self._bounds(allowance, request, candidates)
        return least(bounds, self._beside(account, request, bounds)) if bounds else (0.0, 0.0)
