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
    """Runs the first filters of each profile, up to one that reads data of producers; without traces and metrics."""

    def __init__(self, profiles: Iterable[Profile], produced: AbstractSet[Datum]) -> None:
        """Keep the first filters of each profile; `produced` are the data that producers write."""
        guard = Guard(SchedulingObserver())
        leading = [replace(each, filters=tuple(_leading(each, produced))) for each in profiles]
        self._narrows = bool(leading) and all(each.filters and not each.fail_open for each in leading)
        self._narrowings = [(each.name, Narrowing(each, guard)) for each in leading]

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


def _leading(profile: Profile, produced: AbstractSet[Datum]) -> Iterator[ProfileFilter]:
    """Yield the filters before the first one that reads data of producers."""
    for member in profile.filters:
        keys = {each for each in (*member.filter.reads, *member.filter.may_read) if isinstance(each, DataKey)}
        if keys & produced:
            return
        yield member
