# SPDX-License-Identifier: Apache-2.0
"""Profiles: filters, weighted scorers and one picker under a name; and the filtering of candidates."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from math import inf, isfinite
from typing import Any, TypeAlias

import numpy as np

from epp.framework.arrays import Mask, all_true, as_mask
from epp.framework.candidates import Candidates
from epp.framework.errors import RequestError
from epp.framework.plugin import Failure, Guard, OnError, Role
from epp.framework.refusals import AllBusyError, SaturatedError, StaleDataError, UnavailableError, UnmetConstraintError
from epp.framework.request import Request
from epp.framework.result import DropCause, FilterTrace, lasting_cause
from epp.framework.roles import Filter, Picker, Scorer

AGE_STEP = "staleAfter"
"""Name in traces of the step that drops stale endpoints before any filter."""
_OPENED = "fails open"
_NOTHING: frozenset[DropCause] = frozenset()
_MOST_REASONS = 3
_MOST_EXPLAINED = 64
"""Largest number of candidates whose reasons are collected, since many requests can be refused in a second."""


class OnStale(StrEnum):
    """Treatment of endpoints whose last report is too old, for one plugin."""

    IGNORE = "Ignore"
    """Use the last reported numbers."""
    NEUTRAL = "Neutral"
    """Estimate their load (WAITING, RUNNING, KV_USAGE), as for endpoints that report none."""
    DROP = "Drop"
    """Drop the endpoints; only for filters."""


@dataclass(frozen=True, slots=True)
class Staleness:
    """Limit on the age of an endpoint's report, and treatment of stale endpoints."""

    after_seconds: float
    on_stale: OnStale = OnStale.NEUTRAL


@dataclass(frozen=True, slots=True)
class ProfileFilter:
    filter: Filter[Any]
    role: Role = Filter.role
    staleness: Staleness | None = None

    @classmethod
    def of(cls, plugin: Filter[Any], on_error: OnError | None, staleness: Staleness | None = None) -> "ProfileFilter":
        """Return the filter with an error policy, None for that of its role."""
        return cls(plugin, replace(Filter.role, on_error=on_error or Filter.role.on_error), staleness)

    @property
    def drops_stale(self) -> bool:
        return self.staleness is not None and self.staleness.on_stale is OnStale.DROP

    @property
    def may_empty(self) -> bool:
        return self.filter.may_empty or self.drops_stale

    def fresh(self, candidates: Candidates) -> Mask:
        assert self.staleness is not None  # noqa: S101  only called if it drops stale endpoints
        return ~candidates.stale(self.staleness.after_seconds)


@dataclass(frozen=True, slots=True)
class WeightedScorer:
    """A scorer, its weight, its error policy and its view of stale endpoints in one profile."""

    scorer: Scorer[Any]
    weight: float = 1.0
    role: Role = Scorer.role
    staleness: Staleness | None = None

    def __post_init__(self) -> None:
        if not isfinite(self.weight):
            raise ValueError(f"scorer {self.scorer.name!r}: weight {self.weight} is not a finite number")

    @classmethod
    def of(
        cls, plugin: Scorer[Any], weight: float, on_error: OnError | None, staleness: Staleness | None = None
    ) -> "WeightedScorer":
        """Return the scorer with an error policy, None for that of its role; raises ValueError."""
        return cls(plugin, weight, replace(Scorer.role, on_error=on_error or Scorer.role.on_error), staleness)


@dataclass(frozen=True, slots=True)
class Profile:
    """The plugins of one cycle, in the order of their calls."""

    name: str
    filters: tuple[ProfileFilter, ...]
    scorers: tuple[WeightedScorer, ...]
    picker: Picker[Any]
    drop_stale_after_seconds: float | None = None
    """Age of reports from which endpoints are dropped before all filters; None for no limit."""
    fail_open: frozenset[DropCause] = frozenset()
    """Causes for which filters drop nothing if they would leave no candidate."""
    constraint_status: int = 429
    """Status of requests whose constraints no endpoint meets."""

    @property
    def trusted_seconds(self) -> float:
        """Smallest age from which the reported load of endpoints is not used as it is; infinite for none."""
        rules = [*(member.staleness for member in self.filters), *(member.staleness for member in self.scorers)]
        ages = [rule.after_seconds for rule in rules if rule is not None and rule.on_stale is not OnStale.IGNORE]
        return min([*ages, inf if self.drop_stale_after_seconds is None else self.drop_stale_after_seconds])


_Kept: TypeAlias = tuple[ProfileFilter | None, Mapping[DropCause, Mask]]
"""A filter, or None for the age of metrics, and the mask of the candidates that it keeps by cause."""


@dataclass(frozen=True, slots=True)
class Narrowing:
    """Runs the filters of one profile, each time for another request."""

    _profile: Profile
    _guard: Guard

    def kept(self, request: Request, candidates: Candidates) -> Candidates:
        """Return the candidates that all filters keep, possibly none; raises PluginFailedError."""
        return self._filtered(request, candidates, _NOTHING, [])

    def run(self, request: Request, candidates: Candidates, trace: list[FilterTrace]) -> Candidates:
        """Return the candidates that all filters keep, and append a step for each that ran to `trace`.

        Raises the RequestError of the cause if they leave none, and PluginFailedError if a filter fails that may not be
        skipped.
        """
        left = self._filtered(request, candidates, _NOTHING, trace)
        if len(left):
            return left
        if self._profile.fail_open:
            steps: list[FilterTrace] = []
            opened = self._filtered(request, candidates, self._profile.fail_open, steps)
            if len(opened):
                trace[:] = steps
                return opened
        raise self._refusal(request, candidates, trace)

    def _filtered(
        self, request: Request, candidates: Candidates, but: frozenset[DropCause], trace: list[FilterTrace]
    ) -> Candidates:
        """Return the candidates left, possibly none; the filters drop nothing for the causes in `but`."""
        left, age = candidates, self._profile.drop_stale_after_seconds
        if age is not None:
            opened = DropCause.STALE in but
            left = left if opened else left.keep(~left.stale(age))
            problem = _OPENED if opened else ""
            trace.append(FilterTrace(AGE_STEP, len(candidates), len(left), problem, left.slots))
        for member in self._profile.filters:
            if not len(left):
                break
            plugin = member.filter
            kept, problem = left, ""
            if but and member.may_empty:
                mask = self._guard.call(member.role, plugin, _mask_but, member, request, left, but)
                problem = _OPENED if plugin.drops in but else ""
            else:
                mask = self._guard.call(member.role, plugin, _mask, member, request, left)
            if isinstance(mask, Failure):
                problem = mask.problem
            elif not all_true(mask):
                kept = left.keep(mask)
            if not len(kept) and plugin.parameters.fallback_on_empty:
                kept, problem = left, "dropped all candidates"
            trace.append(FilterTrace(plugin.name, len(left), len(kept), problem, kept.slots))
            left = kept
        return left

    def _refusal(self, request: Request, candidates: Candidates, trace: Sequence[FilterTrace]) -> RequestError:
        kept = tuple(self._kept(request, candidates))
        by_name = {each.filter.name: each.filter.drops for each in self._profile.filters}
        otherwise = by_name.get(trace[-1].plugin, DropCause.STALE)
        cause = lasting_cause((masks for _, masks in kept), otherwise)
        steps = ", ".join(f"{step.plugin} {step.before}>{step.after}" for step in trace if step.after < step.before)
        reasons = self._reasons(request, candidates, _guilty(kept, cause))
        detail = f"{self._profile.name}: {steps}" + (f" ({'; '.join(reasons)})" if reasons else "")
        match cause:
            case DropCause.CONSTRAINT:
                return UnmetConstraintError(self._profile.constraint_status, detail=detail)
            case DropCause.AVAILABILITY:
                return UnavailableError(detail=detail)
            case DropCause.STALE:
                return StaleDataError(detail=detail)
            case DropCause.SATURATION:
                return AllBusyError(detail=detail)
            case DropCause.UNSTATED:
                return SaturatedError(detail=detail)

    def _kept(self, request: Request, candidates: Candidates) -> Iterator[_Kept]:
        """Yield each filter that can drop all candidates, with the candidates that it keeps by cause."""
        if self._profile.drop_stale_after_seconds is not None:
            yield None, {DropCause.STALE: ~candidates.stale(self._profile.drop_stale_after_seconds)}
        for member in self._profile.filters:
            if not member.may_empty or member.filter.parameters.fallback_on_empty:
                continue
            kept = self._guard.call(member.role, member.filter, _masks, member, request, candidates)
            if not isinstance(kept, Failure):
                yield member, kept

    def _reasons(self, request: Request, candidates: Candidates, members: Iterable[ProfileFilter]) -> list[str]:
        """Return the most frequent reasons that filters give, each with the number of candidates."""
        counts: Counter[str] = Counter()
        candidates = candidates.keep(np.arange(len(candidates)) < _MOST_EXPLAINED)
        for member in members:
            found = self._guard.call(member.role, member.filter, _reasons, member.filter, request, candidates)
            if not isinstance(found, Failure):
                counts.update(found)
        return [f"{count} x {reason}" for reason, count in counts.most_common(_MOST_REASONS)]


def seen(candidates: Candidates, staleness: Staleness | None) -> Candidates:
    if staleness is None or staleness.on_stale is OnStale.IGNORE:
        return candidates
    return candidates.without_stale_load(staleness.after_seconds)


def _guilty(kept: Iterable[_Kept], cause: DropCause) -> Iterator[ProfileFilter]:
    """Yield the filters that drop some candidate for this cause, or for a more lasting one."""
    causes = tuple(DropCause)[: tuple(DropCause).index(cause) + 1]
    for member, masks in kept:
        if member is not None and not all(all_true(mask) for which, mask in masks.items() if which in causes):
            yield member


def _mask(member: ProfileFilter, request: Request, candidates: Candidates) -> Mask:
    mask = as_mask(member.filter.filter(request, seen(candidates, member.staleness)), len(candidates))
    return mask & member.fresh(candidates) if member.drops_stale else mask


def _mask_but(member: ProfileFilter, request: Request, candidates: Candidates, but: frozenset[DropCause]) -> Mask:
    """Return the candidates that the filter keeps if it ignores the causes in `but`."""
    mask = np.ones(len(candidates), dtype=np.bool_)
    for cause, kept in _masks(member, request, candidates).items():
        if cause not in but:
            mask &= kept
    return mask


def _masks(member: ProfileFilter, request: Request, candidates: Candidates) -> Mapping[DropCause, Mask]:
    plugin, masks = member.filter, dict[DropCause, Mask]()
    if plugin.may_empty:
        found = plugin.kept_by_cause(request, seen(candidates, member.staleness))
        masks = {cause: as_mask(kept, len(candidates)) for cause, kept in found.items()}
    if member.drops_stale:
        fresh = member.fresh(candidates)
        masks[DropCause.STALE] = masks.get(DropCause.STALE, fresh) & fresh
    return masks


def _reasons(plugin: Filter[Any], request: Request, candidates: Candidates) -> tuple[str, ...]:
    return tuple(plugin.drop_reasons(request, candidates))
