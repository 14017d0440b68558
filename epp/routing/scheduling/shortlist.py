# SPDX-License-Identifier: Apache-2.0
"""Candidates that the profiles may keep, by the filters that need no data of producers."""

from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import replace

import numpy as np

from epp.framework.candidates import Candidates
from epp.framework.errors import RequestError
from epp.framework.guard import Guard, SchedulingObserver
from epp.framework.plugin import Datum
from epp.framework.request import DataKey, Request
from epp.routing.scheduling.profile import Narrowing, Profile, ProfileFilter

_FEWEST = 64
"""Number of candidates from which it pays to run filters twice."""


class Shortlist:
    """Runs the filters of each profile that read no data of producers; without traces and metrics."""

    def __init__(self, profiles: Iterable[Profile], produced: AbstractSet[Datum]) -> None:
        """Find such filters; `produced` are the data that producers write."""
        guard = Guard(SchedulingObserver())
        reduced = [replace(each, filters=tuple(_independent(each, produced))) for each in profiles]
        self._narrows = bool(reduced) and all(each.filters and not each.fail_open for each in reduced)
        self._narrowings = [(each.name, Narrowing(each, guard)) for each in reduced]

    def of(self, request: Request, candidates: Candidates) -> Candidates:
        """Return the candidates that any profile may keep; all of them if there are few, or if a filter fails."""
        if not self._narrows or len(candidates) < _FEWEST:
            return candidates
        kept = np.zeros(candidates.snapshot.capacity, dtype=np.bool_)
        try:
            for name, narrowing in self._narrowings:
                kept[narrowing.kept(request, candidates.within(name, None)).slots] = True
        except RequestError:
            return candidates
        return candidates.keep(kept[candidates.slots])


def _independent(profile: Profile, produced: AbstractSet[Datum]) -> Iterator[ProfileFilter]:
    """Yield the filters that drop what they drop here whatever the other filters and the peer are.

    A filter that falls back, or never drops all candidates, compares candidates: it counts as the first filter only.
    """
    for index, member in enumerate(profile.filters):
        keys = {each for each in (*member.filter.reads, *member.filter.may_read) if isinstance(each, DataKey)}
        judges_each = member.may_empty and not member.filter.parameters.fallback_on_empty
        if not keys & produced and (index == 0 or judges_each):
            yield member
