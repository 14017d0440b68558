# SPDX-License-Identifier: Apache-2.0
"""What one request may be at most, whatever else is under way."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from epp.admission.quotas.account import Account
from epp.admission.quotas.allowances import Allowance, LimitKey
from epp.admission.quotas.hardware import device_counts, memory_shares, prices, tflops_shares
from epp.admission.quotas.reservation import Amounts
from epp.framework.arrays import Floats, Mask, any_true, lowest
from epp.framework.candidates import Candidates
from epp.framework.errors import BodyTooLargeError, Breach, OverQuotaError
from epp.framework.quotas import Quota
from epp.framework.request import Request

_ROUNDING = 1.0 + 1e-9
_TOO_LARGE = BodyTooLargeError.status
_TOTALS = frozenset({LimitKey.TOTAL_ACCELERATOR_BYTES, LimitKey.TOTAL_TFLOPS})


class Bound(NamedTuple):
    """A limit of hardware, and what the request would take of it at each candidate."""

    key: LimitKey
    needs: Floats
    limit: float
    used: float = 0.0

    @property
    def mask(self) -> Mask:
        """The candidates where it fits: those where it takes nothing even if more than the limit is used."""
        fits: Mask = self.needs <= max(0.0, self.limit * _ROUNDING - self.used)
        return fits


def check_tokens(request: Request, quota: Quota) -> None:
    """Refuse a request whose prompt, or whose answer as far as it says, is too long; raises OverQuotaError.

    One that names no most for its answer is not refused for that: how long it will be is not known.
    """
    single, total = quota.single, quota.total
    prompt, output = request.prompt_tokens, request.body.max_output_tokens
    if single.prompt_tokens > 0 and prompt > single.prompt_tokens:
        raise _over(request, LimitKey.PROMPT_TOKENS, prompt, single.prompt_tokens, _TOO_LARGE)
    if single.output_tokens > 0 and output is not None and output > single.output_tokens:
        raise _over(request, LimitKey.OUTPUT_TOKENS, output, single.output_tokens)
    if total.tokens > 0 and prompt + (output or 0) > total.tokens:
        raise _over(request, LimitKey.TOTAL_TOKENS, prompt + (output or 0), total.tokens, _TOO_LARGE)
    if total.tokens_per_minute > 0 and prompt > total.tokens_per_minute:
        raise _over(request, LimitKey.TOTAL_TOKENS_PER_MINUTE, prompt, total.tokens_per_minute, _TOO_LARGE)


def hardware_bounds(allowance: Allowance, candidates: Candidates, mean_seconds: float) -> Iterator[Bound]:
    """Yield the limits of hardware for one request; its price is that of its tenant's mean time."""
    quota, sharers = allowance
    single, total = quota.single, quota.total
    if single.accelerator_bytes > 0 or total.accelerator_bytes > 0:
        needs = memory_shares(candidates, sharers)
        if single.accelerator_bytes > 0:
            yield Bound(LimitKey.ACCELERATOR_BYTES, needs, single.accelerator_bytes)
        if total.accelerator_bytes > 0:
            yield Bound(LimitKey.TOTAL_ACCELERATOR_BYTES, needs, total.accelerator_bytes)
    if single.tflops > 0 or total.tflops > 0:
        needs = tflops_shares(candidates, sharers)
        if single.tflops > 0:
            yield Bound(LimitKey.TFLOPS, needs, single.tflops)
        if total.tflops > 0:
            yield Bound(LimitKey.TOTAL_TFLOPS, needs, total.tflops)
    if single.devices > 0:
        yield Bound(LimitKey.DEVICES, device_counts(candidates), single.devices)
    if single.dollars > 0 and mean_seconds > 0:
        yield Bound(LimitKey.DOLLARS, prices(candidates) * mean_seconds, single.dollars)


def joint_mask(bounds: list[Bound]) -> Mask:
    """Return the candidates where the request fits all of one or more bounds."""
    masks = [bound.mask for bound in bounds]
    mask: Mask = masks[0] if len(masks) == 1 else np.logical_and.reduce(masks)
    return mask


def check_hardware(request: Request, bounds: list[Bound], mask: Mask) -> None:
    """Refuse a request that fits at none of some candidates; raises OverQuotaError."""
    if not len(mask) or any_true(mask):
        return
    worst = next((bound for bound in bounds if not any_true(bound.mask)), bounds[0])
    raise _over(request, worst.key, lowest(worst.needs), worst.limit)


def beside(account: Account, held: Amounts, bounds: list[Bound]) -> list[Bound]:
    """Return the bounds with what is used of them, and what is held for others."""
    used = {
        LimitKey.TOTAL_ACCELERATOR_BYTES: account.accelerator_bytes + held.accelerator_bytes,
        LimitKey.TOTAL_TFLOPS: account.tflops + held.tflops,
    }
    return [bound._replace(used=used.get(bound.key, 0.0)) for bound in bounds]


def least(bounds: list[Bound], used: list[Bound]) -> tuple[float, float]:
    """Return memory and TFLOPS at the candidate that is nearest to fitting, of those where a request may go at all.

    `used` are the bounds with what is used of them.
    """
    totals = [bound for bound in used if bound.key in _TOTALS]
    if not totals:
        return 0.0, 0.0
    beyond = np.max([(bound.needs + bound.used) / bound.limit for bound in totals], axis=0)
    mask = joint_mask(bounds)
    best = int(np.argmin(np.where(mask, beyond, np.inf) if any_true(mask) else beyond))
    amounts = {bound.key: bound.needs.item(best) for bound in totals}
    return amounts.get(LimitKey.TOTAL_ACCELERATOR_BYTES, 0.0), amounts.get(LimitKey.TOTAL_TFLOPS, 0.0)


def _over(request: Request, key: LimitKey, requested: float, limit: float, status: int = 400) -> OverQuotaError:
    return OverQuotaError(Breach(request.fairness_id, key.value, requested, limit), status)
