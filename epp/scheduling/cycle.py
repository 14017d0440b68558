"""One cycle: one profile's filters, scorers and picker over the candidates."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from epp.framework.arrays import Floats, Mask, Positions
from epp.framework.candidates import Candidates
from epp.framework.errors import PluginFailedError, RequestError, SaturatedError
from epp.framework.plugins import Draw, Plugin
from epp.framework.request import Request
from epp.framework.result import FilterTrace, ProfileResult, ScoreTrace
from epp.scheduling.observer import SchedulingObserver
from epp.scheduling.profile import OnError, Profile, WeightedScorer


@dataclass(frozen=True, slots=True)
class Cycle:
    """One profile's run for one request."""

    profile: Profile
    request: Request
    draw: Draw
    observer: SchedulingObserver

    def run(self, candidates: Candidates) -> ProfileResult:
        """Return whom the profile picks.

        Raises SaturatedError when its filters leave nobody, PluginFailedError when a plugin fails that may not be
        skipped. A scorer that fails and is skipped has no vote.
        """
        left, filters = self._filter(candidates)
        totals = np.zeros(len(left))
        scores: list[ScoreTrace] = []
        for weighted in self.profile.scorers:
            votes, problem = self._score(weighted, left)
            totals += weighted.weight * votes
            scores.append(ScoreTrace(weighted.scorer.name, weighted.weight, votes, problem))
        picked = self._pick(left, totals)
        return ProfileResult(self.profile.name, left, totals, picked, filters, tuple(scores))

    def _filter(self, candidates: Candidates) -> tuple[Candidates, tuple[FilterTrace, ...]]:
        trace: list[FilterTrace] = []
        left = candidates
        for member in self.profile.filters:
            plugin = member.filter
            kept, problem = left, ""
            try:
                mask = _one_truth_each(plugin.filter(self.request, left), len(left))
                kept = left if mask.all() else left.keep(mask)
            except RequestError:
                raise
            except Exception as error:  # noqa: BLE001  the profile says whether that matters
                problem = self._failed(plugin, member.on_error, error)
            if not len(kept) and plugin.parameters.fallback_on_empty:
                kept, problem = left, "left nobody"
            trace.append(FilterTrace(plugin.name, len(left), len(kept), problem))
            left = kept
            if not len(left):
                raise SaturatedError
        return left, tuple(trace)

    def _score(self, weighted: WeightedScorer, left: Candidates) -> tuple[Floats, str]:
        scorer = weighted.scorer
        try:
            scores = _one_number_each(scorer.score(self.request, left), len(left))
        except Exception as error:  # noqa: BLE001  the profile says whether that matters
            return np.zeros(len(left)), self._failed(scorer, weighted.on_error, error)
        if scores.min() >= 0.0 and scores.max() <= 1.0:  # neither holds where a NaN is
            return scores, ""
        finite = np.isfinite(scores)
        if not finite.all():
            self.observer.scores_rejected(scorer.name, int((~finite).sum()))
            scores = np.where(finite, scores, 0.0)
        return np.clip(scores, 0.0, 1.0), ""

    def _failed(self, plugin: Plugin[Any], on_error: OnError, error: Exception) -> str:
        """Return the problem where the plugin may be skipped; raises PluginFailedError where it may not."""
        self.observer.plugin_failed(plugin.name, error)
        if on_error is OnError.FAIL:
            raise PluginFailedError(plugin.name, str(error)) from error
        return f"{type(error).__name__}: {error}"

    def _pick(self, left: Candidates, totals: Floats) -> Positions:
        picker = self.profile.picker
        try:
            return _positions_within(picker.pick(self.request, left, totals, self.draw), len(left))
        except Exception as error:
            self.observer.plugin_failed(picker.name, error)
            raise PluginFailedError(picker.name, str(error)) from error


def _one_truth_each(mask: Mask, count: int) -> Mask:
    if mask.shape != (count,) or mask.dtype != np.bool_:
        raise TypeError(f"returned {mask.dtype}{mask.shape} where one bool for each of {count} candidates was due")
    return mask


def _one_number_each(scores: Floats, count: int) -> Floats:
    scores = np.asarray(scores, dtype=np.float64)
    if scores.shape != (count,):
        raise TypeError(f"returned shape {scores.shape} where one score for each of {count} candidates was due")
    return scores


def _positions_within(picked: Positions, count: int) -> Positions:
    if not len(picked):
        raise ValueError("picked nobody")
    if picked.min() < 0 or picked.max() >= count:
        raise ValueError(f"picked positions {picked.tolist()} out of {count} candidates")
    return picked
