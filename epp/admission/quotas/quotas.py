# SPDX-License-Identifier: Apache-2.0
"""Enforcement of quotas, and the report of their usage."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from itertools import islice
from typing import Any

import msgspec

from epp.admission.quotas.account import Account
from epp.admission.quotas.limits import (
    MOST_ASKED,
    MOST_CONSIDERED,
    Bound,
    blocked,
    check_hardware,
    check_tokens,
    deficit,
    enough,
    hardware_bounds,
    joint_mask,
    least,
    over_time,
    with_usage,
)
from epp.admission.quotas.peer_use import WhenAlone
from epp.admission.quotas.quota_ledger import QuotaLedger
from epp.admission.quotas.reservation import QuotaObserver, Reservation
from epp.admission.quotas.shared_use import SharedUse
from epp.admission.quotas.usage import TOTAL_KEYS, Allowance, Allowances, LimitKey
from epp.framework.arrays import Mask
from epp.framework.candidates import Candidates
from epp.framework.clock import Clock
from epp.framework.plugin import Guard
from epp.framework.quotas import Blocked, Quota, QuotaSource
from epp.framework.refusals import Breach, OverQuotaError
from epp.framework.request import Request
from epp.framework.sharing import Shareable

NOMINATION_SECONDS = 5.0
"""Time for which the amounts of victims are reserved for the request that they were evicted for."""
_NO_QUOTA = Quota()
_MOST_REPORTED = 1_000
"""Largest number of tenants in a report, those with requests in flight first."""


class QuotaUsage(msgspec.Struct, frozen=True, kw_only=True):
    """One limit on all requests of a tenant, and its usage."""

    tenant: str
    key: str
    """Name of the limit."""
    used: float
    """Use at all pickers, as last reported."""
    limit: float
    elsewhere: float | None = None
    """Part of `used` by other pickers; None for tokens of a minute, for which it is unknown."""
    is_alerting: bool = False
    """Whether there is an alert, because the limit is almost used up, or was a short time ago."""
    is_set: bool = False
    """Whether the quota was set at run time."""
    origin: str = ""
    """Human-readable source of the quota."""
    uncounted: int = 0
    """Number of requests that were not charged, since the hardware or price of their endpoint is unknown."""

    @property
    def headroom(self) -> float:
        """Unused amount; negative if usage is above the limit."""
        return self.limit - self.used


class Adjustment(msgspec.Struct, frozen=True, kw_only=True):
    """A change of a quota at run time, with its effect on current usage."""

    tenant: str
    before: Quota | None
    """Former quota; None for no quota."""
    after: Quota | None
    lines: tuple[QuotaUsage, ...]
    """Usage of each limit of the new quota."""
    breaches: tuple[Breach, ...]
    """Limits below the current usage, so that new requests do not fit until enough requests have ended."""
    is_applied: bool
    """False for a dry run."""


def lines(account: Account, now: float, today: int, *, is_set: bool) -> tuple[QuotaUsage, ...]:
    by_peers = dict(zip(TOTAL_KEYS, account.used_by_peers(today), strict=True))
    uses = {key: (used, limit) for key, used, limit in account.uses(now, today)}
    return tuple(
        QuotaUsage(
            tenant=account.tenant,
            key=key.value,
            used=uses[key][0],
            limit=uses[key][1],
            elsewhere=None if key is LimitKey.TOTAL_TOKENS_PER_MINUTE else by_peers[key],
            is_alerting=key in account.alerts,
            is_set=is_set,
            origin=account.quota.origin,
            uncounted=account.uncounted[key],
        )
        for key in LimitKey
        if key in uses
    )


class Quotas(QuotaLedger):
    """Enforces quotas; requests in flight stay charged when quotas change.

    The tenant of a request is its fairness id. No method awaits, so that a check and its charge are atomic on the event
    loop.
    """

    def __init__(self, clock: Clock, *, guard: Guard, observer: QuotaObserver | None = None) -> None:
        super().__init__(clock, Allowances(guard), observer or QuotaObserver())
        self.is_active = False
        """Whether any tenant may have a quota; if not, callers can skip all checks."""

    def use(self, sources: Sequence[QuotaSource[Any]]) -> None:
        """Replace the sources, in order of precedence; quotas that were set at run time stay."""
        self.allowances.use(sources)
        self.is_active = self.allowances.is_active

    def twin(self, sources: Sequence[QuotaSource[Any]], *, guard: Guard, ended: Sequence[Reservation] = ()) -> "Quotas":
        """Return quotas with other sources for dry runs; they check the same usage, except that of `ended` requests."""
        return _Twin(self, self._clock, self.allowances.twin(guard, sources), guard, ended)

    def share(self, picker: str, when_alone: WhenAlone = WhenAlone.LAST_KNOWN_SHARE) -> Shareable:
        """Return the component that exchanges use with other pickers, which then counts; call it before any request."""
        return SharedUse(self, self._clock, picker, when_alone)

    @property
    def tenants(self) -> int:
        return len(self.accounts)

    def check_single(self, request: Request) -> None:
        """Raise OverQuotaError for a request that exceeds a limit of its tenant on its own."""
        allowance = self.allowances.of(request.fairness_id)
        if allowance is not None:
            try:
                check_tokens(request, allowance.quota)
            except OverQuotaError as error:
                self._observer.over_quota(request, error.breach)
                raise

    def breach(self, request: Request) -> Blocked | None:
        """Return the limit that a request exceeds at every endpoint; None if it fits. Has no side effects."""
        account = self._account(request)
        return None if account is None else self._blocked(account, request)

    def fits_single(self, request: Request, candidates: Candidates) -> Mask | None:
        """Return a mask of the candidates where a request on its own is within the limits; None for all.

        Raises OverQuotaError if there are candidates and it exceeds a limit at all of them.
        """
        bounds = self._bounds(self.allowances.of(request.fairness_id), request, candidates)
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
        """Return a mask of the candidates where a request fits in addition to those in flight; None for all."""
        allowance = self.allowances.of(request.fairness_id)
        bounds = self._bounds(allowance, request, candidates)
        if allowance is None or not bounds:
            return None
        account = self.account_of(request.fairness_id, allowance.quota)
        return joint_mask(bounds if account is None else self._with_usage(account, request, bounds))

    def shortage(self, request: Request, candidates: Candidates) -> Blocked | None:
        """Return the limit that a request exceeds at all candidates; None if it fits at any."""
        account = self._account(request)
        if account is None or not len(candidates):
            return None
        return self._blocked(account, request, *self._least(account, request, candidates))

    def victims(
        self, request: Request, may_end: Callable[[Reservation], bool], candidates: Candidates | None = None
    ) -> list[Reservation] | None:
        """Return requests of the same tenant and lower priority to evict so that a request fits, none superfluous.

        If only one limit is exceeded, the number of requests is the smallest possible. Among equal requests, the lowest
        priorities are chosen first; within a priority, the newest requests. None if evictions cannot help, because time
        must pass or too few requests may be evicted. Empty if the request fits already.
        """
        account = self._account(request)
        if account is None:
            return []
        memory, tflops = 0.0, 0.0
        if candidates is not None and len(candidates):
            memory, tflops = self._least(account, request, candidates)
        now = self._clock.now()
        need, held = account.need(request, memory, tflops), self.held(account, request, now)
        if over_time(account, need, now, self.calendar):
            return None  # the end of other requests does not help
        lower = islice(account.lowest_first(request.priority), MOST_ASKED)
        may_go = islice((each for each in lower if may_end(each)), MOST_CONSIDERED)
        return enough(deficit(account, need, held), list(may_go))

    def nominate(self, request: Request, victims: Sequence[Reservation], seconds: float = NOMINATION_SECONDS) -> None:
        """Reserve the amounts of victims for a request, against lower priorities of its tenant."""
        account = self.accounts.get(request.fairness_id)
        if account is not None and victims:
            account.nominations.add(request, victims, self._clock.now() + seconds)

    def forget_nomination(self, request: Request) -> None:
        """Drop the nomination of a request, for example because it has left."""
        account = self.accounts.get(request.fairness_id)
        if account is not None and account.nominations.forget(request):
            self.notify_release(request.fairness_id)

    def adjust(self, tenant: str, quota: Quota | None, *, dry_run: bool = False) -> Adjustment:
        """Set the quota of a tenant, which overrides the sources; None to remove it.

        Requests in flight continue, even beyond the new quota. Raises ConfigurationError for an invalid quota, and if
        too many are set.
        """
        before = self.allowances.of(tenant)
        self.allowances.check(tenant, quota)
        if not dry_run:
            self.allowances.set(tenant, quota)
            self.is_active = self.allowances.is_active
        found = self.allowances.of_sources(tenant)
        after = quota or (None if found is None else found.quota)
        account = self.accounts.get(tenant) or self.new_account(tenant, _NO_QUOTA)
        former = account.quota
        account.set_quota(after or _NO_QUOTA)
        now, today = self._clock.now(), self.calendar.today()
        shown = lines(account, now, today, is_set=quota is not None)
        beyond = [line for line in shown if line.used > line.limit]
        if dry_run:
            account.set_quota(former)
        else:
            if account.in_flight.requests:
                self.alerts.check(account, now, today)
            self.notify_release(tenant)
        return Adjustment(
            tenant=tenant,
            before=None if before is None else before.quota,
            after=after,
            lines=shown,
            breaches=tuple(Breach(each.tenant, each.key, each.used, each.limit) for each in beyond),
            is_applied=not dry_run,
        )

    @property
    def set_quotas(self) -> Mapping[str, Quota]:
        return self.allowances.set_quotas

    def report(self, tenant: str | None = None, most: int = _MOST_REPORTED) -> tuple[QuotaUsage, ...]:
        """Return the usage of each limit of `total`, for one tenant or for all tenants with an account."""
        now, today = self._clock.now(), self.calendar.today()
        if tenant is None:
            with_use = [account.tenant for account in islice(self.accounts, most)]
            unused = (each for each in self.allowances.set_quotas if self.accounts.get(each) is None)
            tenants = with_use + list(islice(unused, most - len(with_use)))
        else:
            tenants = [tenant]
        found: list[QuotaUsage] = []
        for each in tenants:
            allowance = self.allowances.of(each)
            if allowance is not None:
                quota = allowance.quota
                account = self.account_of(each, quota) or self.new_account(each, quota)
                found += lines(account, now, today, is_set=each in self.allowances.set_quotas)
        return tuple(found)

    def reservations(self) -> Iterator[Reservation]:
        """Yield the reservations of the requests in flight of tenants with a quota, up to a number of tenants."""
        for account in islice(self.accounts, _MOST_REPORTED):
            yield from account.reservations()

    def quota_of(self, tenant: str) -> Quota | None:
        allowance = self.allowances.of(tenant)
        return None if allowance is None else allowance.quota

    def _account(self, request: Request) -> Account | None:
        """Return the account of a request whose tenant has a quota; None without one."""
        allowance = self.allowances.of(request.fairness_id)
        return None if allowance is None else self.account_of(request.fairness_id, allowance.quota)

    def _blocked(
        self, account: Account, request: Request, accelerator_bytes: float = 0.0, tflops: float = 0.0
    ) -> Blocked | None:
        now = self._clock.now()
        need, held = account.need(request, accelerator_bytes, tflops), self.held(account, request, now)
        return blocked(account, need, held, now, self.calendar)

    def _bounds(self, allowance: Allowance | None, request: Request, candidates: Candidates) -> list[Bound]:
        if allowance is None:
            return []
        mean = 0.0
        if allowance.quota.single.dollars > 0:
            account = self.account_of(request.fairness_id, allowance.quota)
            mean = 0.0 if account is None else account.means.seconds
        return list(hardware_bounds(allowance, candidates, mean))

    def _with_usage(self, account: Account, request: Request, bounds: list[Bound]) -> list[Bound]:
        return with_usage(account, self.held(account, request, self._clock.now()), bounds)

    def _least(self, account: Account, request: Request, candidates: Candidates) -> tuple[float, float]:
        bounds = self._bounds(self.allowances.of(request.fairness_id), request, candidates)
        return least(bounds, self._with_usage(account, request, bounds)) if bounds else (0.0, 0.0)


class _Twin(Quotas):
    """Quotas for dry runs; its accounts are copies of the accounts of others, without `ended` requests."""

    def __init__(
        self, quotas: Quotas, clock: Clock, allowances: Allowances, guard: Guard, ended: Sequence[Reservation]
    ) -> None:
        super().__init__(clock, guard=guard)
        self.allowances = allowances
        self.is_active = allowances.is_active
        self.calendar = copy(quotas.calendar)
        self.joint = quotas.joint
        self.group = quotas.group
        self._quotas = quotas
        self._ended = ended

    def account_of(self, tenant: str, quota: Quota) -> Account | None:
        account = self._quotas.accounts.get(tenant)
        if account is None:
            return None
        twin = account.twin(quota)
        for each in self._ended:
            if each.is_limited and not each.is_released and each.tenant == tenant:
                twin.in_flight = twin.in_flight.minus(each.charged)
        return twin
