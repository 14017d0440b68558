# SPDX-License-Identifier: Apache-2.0
"""One cycle: the filters, scorers and picker of one profile over the candidates."""

from functools import partial
from typing import Any

import numpy as np

from epp.framework.arrays import (
    ROUNDING,
    Floats,
    Positions,
    all_true,
    are_scores,
    as_positions,
    as_scores,
)
from epp.framework.candidates import Candidates
from epp.framework.errors import RequestError
from epp.framework.guard import Failure, Guard, SchedulingObserver
from epp.framework.request import Request
from epp.framework.result import FilterTrace, ProfileAttempt, ProfileResult, ScoreTrace
from epp.framework.roles import Draw, Picker
from epp.routing.scheduling.profile import Narrowing, Profile, WeightedScorer, seen


class Cycle:
    """Runs one profile, each time for another request."""

    __slots__ = ("_guard", "_narrowing", "_narrows", "_observer", "_profile", "_scorers")

    def __init__(self, profile: Profile, guard: Guard, observer: SchedulingObserver) -> None:
        self._profile = profile
        self._guard = guard
        self._observer = observer
        self._narrowing = Narrowing(profile, guard)
        self._narrows = bool(profile.filters) or profile.drop_stale_after_seconds is not None
        self._scorers = [
            (weighted, None if weighted.weight == 1.0 else np.array(weighted.weight)) for weighted in profile.scorers
        ]
        """With weights as arrays of no dimension, as NumPy multiplies with at half the cost of a float; None for 1."""

    def run(self, request: Request, candidates: Candidates) -> ProfileResult:
        """Return the result of the profile.

        Raises the RequestError of the cause when its filters drop all candidates, PluginFailedError when a plugin fails
        that may not be skipped; `attempt` of either is what had been done. A scorer that fails and is skipped adds
        nothing to the totals.
        """
        steps: list[FilterTrace] = []
        traces: list[ScoreTrace] = []
        try:
            return self._run(request, candidates, steps, traces)
        except RequestError as error:
            error.attempt = ProfileAttempt(candidates, tuple(steps), tuple(traces))
            raise

    def _run(
        self, request: Request, candidates: Candidates, steps: list[FilterTrace], traces: list[ScoreTrace]
    ) -> ProfileResult:
        profile = self._profile
        left = self._narrowing.run(request, candidates, steps) if self._narrows else candidates
        count = len(left)
        totals: Floats | None = None
        staleness, shown = None, left
        for weighted, weight in self._scorers:
            scorer, problem = weighted.scorer, ""
            if weighted.staleness != staleness:
                staleness, shown = weighted.staleness, seen(left, weighted.staleness)
            scores = self._guard.call(weighted.role, scorer, scorer.score, request, shown)
            if not are_scores(scores, count):
                scores, problem = self._repaired(weighted, scores, count)
            trace = scores.view()
            trace.setflags(write=False)
            traces.append(ScoreTrace(scorer.name, weighted.weight, trace, problem))
            if totals is None:
                totals = scores.copy() if weight is None else weight * scores
            else:
                totals += scores if weight is None else weight * scores
        totals = np.zeros(count) if totals is None else totals
        totals.setflags(write=False)
        picker = profile.picker
        picked = self._guard.call(
            Picker.role, picker, _picked, picker, request, left, totals, partial(request.generator, profile.name)
        )
        assert not isinstance(picked, Failure)  # noqa: S101  a picker is never skipped
        return ProfileResult(
            profile.name, left, totals, picked, tuple(steps), tuple(traces), picker.name, candidates.slots
        )

    def _repaired(self, weighted: WeightedScorer, found: object, count: int) -> tuple[Floats, str]:
        """Return usable scores in place of those found, and the problem of a scorer without any."""
        scorer = weighted.scorer
        scores = (
            found if isinstance(found, Failure) else self._guard.check(weighted.role, scorer, as_scores, found, count)
        )
        if isinstance(scores, Failure):
            return np.zeros(count), scores.problem
        finite = np.isfinite(scores)
        if not all_true(finite):
            self._observer.scores_rejected(scorer.name, int((~finite).sum()))
            scores = np.where(finite, scores, 0.0)
        clamped = np.clip(scores, 0.0, 1.0)
        outside = int((np.abs(scores - clamped) > ROUNDING).sum())
        if outside:
            self._observer.scores_clamped(scorer.name, outside)
        return clamped, ""


def _picked(picker: Picker[Any], request: Request, candidates: Candidates, totals: Floats, draw: Draw) -> Positions:
    return as_positions(picker.pick(request, candidates, totals, draw), len(candidates))
