# SPDX-License-Identifier: Apache-2.0
"""One cycle: the filters, scorers and picker of one profile over the candidates."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from epp.framework.arrays import ROUNDING, Floats, Mask, Positions, as_mask, as_positions, as_scores, read_only
from epp.framework.candidates import Candidates
from epp.framework.errors import SaturatedError
from epp.framework.request import Request
from epp.framework.result import FilterTrace, ProfileResult, ScoreTrace
from epp.framework.roles import Draw, Filter, Picker, Scorer
from epp.scheduling.guard import Failure, Guard
from epp.scheduling.observer import SchedulingObserver
from epp.scheduling.profile import Profile, WeightedScorer


@dataclass(frozen=True, slots=True)
class Cycle:
    """One run of one profile for one request."""

    profile: Profile
    request: Request
    draw: Draw
    guard: Guard
    observer: SchedulingObserver

    def run(self, candidates: Candidates) -> ProfileResult:
        """Return what the profile picks.

        Raises SaturatedError when its filters drop all candidates, PluginFailedError when a plugin fails that may not
        be skipped. A scorer that fails and is skipped adds nothing to the totals.
        """
        left, filters = self._filter(candidates)
        totals = np.zeros(len(left))
        scores: list[ScoreTrace] = []
        for weighted in self.profile.scorers:
            values, problem = self._score(weighted, left)
            totals += weighted.weight * values
            scores.append(ScoreTrace(weighted.scorer.name, weighted.weight, read_only(values.view()), problem))
        read_only(totals)
        picked = self.guard.call(
            Picker.role, self.profile.picker, _picked, self.profile.picker, self.request, left, totals, self.draw
        )
        assert not isinstance(picked, Failure)  # noqa: S101  a picker is never skipped
        return ProfileResult(self.profile.name, left, totals, picked, filters, tuple(scores), self.profile.picker.name)

    def _filter(self, candidates: Candidates) -> tuple[Candidates, tuple[FilterTrace, ...]]:
        trace: list[FilterTrace] = []
        left = candidates
        for member in self.profile.filters:
            plugin = member.filter
            kept, problem = left, ""
            mask = self.guard.call(member.role, plugin, _mask, plugin, self.request, left)
            if isinstance(mask, Failure):
                problem = mask.problem
            elif not mask.all():
                kept = left.keep(mask)
            if not len(kept) and plugin.parameters.fallback_on_empty:
                kept, problem = left, "dropped all candidates"
            trace.append(FilterTrace(plugin.name, len(left), len(kept), problem, kept.slots))
            left = kept
            if not len(left):
                raise SaturatedError(detail=_narrowed(self.profile.name, trace))
        return left, tuple(trace)

    def _score(self, weighted: WeightedScorer, left: Candidates) -> tuple[Floats, str]:
        scorer = weighted.scorer
        scores = self.guard.call(weighted.role, scorer, _scores, scorer, self.request, left)
        if isinstance(scores, Failure):
            return np.zeros(len(left)), scores.problem
        if scores.min() >= 0.0 and scores.max() <= 1.0:  # neither holds where a NaN is
            return scores, ""
        finite = np.isfinite(scores)
        if not finite.all():
            self.observer.scores_rejected(scorer.name, int((~finite).sum()))
            scores = np.where(finite, scores, 0.0)
        clamped = np.clip(scores, 0.0, 1.0)
        outside = int((np.abs(scores - clamped) > ROUNDING).sum())
        if outside:
            self.observer.scores_clamped(scorer.name, outside)
        return clamped, ""


def _narrowed(profile: str, trace: Sequence[FilterTrace]) -> str:
    """Say how the filters of a profile left no candidate."""
    steps = ", ".join(f"{step.plugin} {step.before}>{step.after}" for step in trace if step.after < step.before)
    return f"{profile}: {steps}"


def _mask(plugin: Filter[Any], request: Request, candidates: Candidates) -> Mask:
    return as_mask(plugin.filter(request, candidates), len(candidates))


def _scores(scorer: Scorer[Any], request: Request, candidates: Candidates) -> Floats:
    return as_scores(scorer.score(request, candidates), len(candidates))


def _picked(picker: Picker[Any], request: Request, candidates: Candidates, totals: Floats, draw: Draw) -> Positions:
    return as_positions(picker.pick(request, candidates, totals, draw), len(candidates))
