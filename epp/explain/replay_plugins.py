# SPDX-License-Identifier: Apache-2.0
"""Filters and scorers that replay recorded results, and call a real plugin for endpoints without a record."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from epp.explain.record import DecisionRecord
from epp.framework.arrays import Floats, Mask
from epp.framework.candidates import Candidates
from epp.framework.plugin import Plugin
from epp.framework.request import Request
from epp.framework.roles import Filter, Scorer

_DROPPED, _KEPT = 0.0, 1.0


class Recalled:
    """Recorded results of each plugin, by slot."""

    def __init__(self) -> None:
        self._of: dict[tuple[str, str], Floats] = {}
        self._anywhere: dict[str, Floats] = {}

    def use(self, record: DecisionRecord, slots: Mapping[str, int]) -> None:
        """Use the results of a record, except for those of failed plugins."""
        self._of.clear()
        self._anywhere.clear()
        count = len(slots)
        for run in record.profiles:
            for step in run.filters:
                if not step.problem:
                    verdicts = self._values(run.name, step.plugin, count)
                    verdicts[[slots[name] for name in step.kept if name in slots]] = _KEPT
                    verdicts[[slots[drop.endpoint] for drop in step.dropped]] = _DROPPED
                    verdicts[[slots[each.endpoint] for each in run.candidates]] = _KEPT
            for number, scorer in enumerate(run.scorers):
                if not scorer.problem:
                    scores = self._values(run.name, scorer.plugin, count)
                    for candidate in run.candidates:
                        scores[slots[candidate.endpoint]] = candidate.scores[number]

    def of(self, plugin: Plugin[Any], candidates: Candidates, call: Callable[[], Floats | Mask]) -> Floats:
        """Return the results of a plugin in the profile, or else in another; `call` gives those without a record."""
        found = self._of.get((candidates.profile, plugin.name))
        if found is None:
            found = self._anywhere.get(plugin.name)
        if found is None:
            return np.asarray(call(), dtype=np.float64)
        found = found[candidates.slots]
        missing = np.isnan(found)
        return np.where(missing, call(), found) if missing.any() else found

    def _values(self, profile: str, plugin: str, count: int) -> Floats:
        values = self._of[profile, plugin] = np.full(count, np.nan)
        self._anywhere.setdefault(plugin, values)
        return values


class RecordedFilter(Filter[Any]):
    """A filter of the configuration under which decisions were recorded."""

    plugin_type = "recorded-filter"

    def __init__(self, real: Filter[Any], recalled: Recalled) -> None:
        super().__init__(real.parameters, name=real.name, clock=real.clock)
        self.may_empty, self.drops = real.may_empty, real.drops
        self._real = real
        self._recalled = recalled

    def filter(self, request: Request, candidates: Candidates) -> Mask:
        """Return the recorded result, or that of the real filter."""
        kept: Mask = self._recalled.of(self, candidates, lambda: self._real.filter(request, candidates)) == _KEPT
        return kept


class RecordedScorer(Scorer[Any]):
    """A scorer of the configuration under which decisions were recorded."""

    plugin_type = "recorded-scorer"

    def __init__(self, real: Scorer[Any], recalled: Recalled) -> None:
        super().__init__(real.parameters, name=real.name, clock=real.clock)
        self._real = real
        self._recalled = recalled

    def score(self, request: Request, candidates: Candidates) -> Floats:
        """Return the recorded scores, or those of the real scorer."""
        return self._recalled.of(self, candidates, lambda: self._real.score(request, candidates))
