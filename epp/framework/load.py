# SPDX-License-Identifier: Apache-2.0
"""Estimated load of endpoints that do not report it: without a metrics page, or with a missing or stale one.

All scorers and filters use reported numbers as they are, and estimate unreported ones (NaN) from the requests that this
picker has in flight:

    requests = the larger of the reported running and waiting requests and of own requests in flight; without a report,
               own requests, plus the (lower) median of the requests of others at endpoints with a report
    load     = requests, times the least load per request of the reporting candidates with as many requests or more;
               for each request beyond those of the busiest reporting candidate, 1 more (for KV caches 1/256)

An endpoint without a report thus ties with the best reporting endpoint at the same number of requests, and is worse
than all of them with more requests: it is neither starved nor flooded. If no candidate reports, own requests in flight
decide. An endpoint that reports no requests, although 8 or more own requests are in flight, is treated as one without a
report: its page may be that of another model.

Comparisons with limits, such as a full queue, need another estimate (`expected_load`): 40 requests are a queue only if
the engine runs fewer concurrently. There, unreported requests of others do not count, and requests beyond those of the
busiest reporting candidate are running, not waiting, up to 256, the default of vLLM.

Statistics of a whole pool, such as its mean saturation, are those of the endpoints that report.
"""

from collections.abc import Mapping
from math import isnan
from typing import NamedTuple

import numpy as np

from epp.framework.arrays import Floats, Mask, highest
from epp.framework.candidates import Candidates
from epp.framework.snapshot import IN_FLIGHT, INHERITED, KV_USAGE, RUNNING, WAITING, Column

LOAD_INPUTS: tuple[Column, ...] = (WAITING, RUNNING, IN_FLIGHT, INHERITED)
"""Columns used by the estimates; a plugin that calls one of these functions must list them in `may_read`."""

_MANY = 8.0
"""Own requests in flight that refute a report of no requests; so many do not start and end between two reports."""
_BATCH = 256.0
"""Default of the maximum batch size of engines."""
_MOST = 1e12
"""Bound on reported requests, beyond any engine, which keeps sums finite."""


class _Measure(NamedTuple):
    """Assumed load of a request beyond those of all reporting candidates, and bounds."""

    within_batch: float = 0.0
    """Load of each request up to `batch`."""
    above: float = 1.0
    """Load of each further request."""
    highest: float = _MOST
    batch: float = 0.0
    others: bool = True
    """Whether unreported requests of others count."""


_FOR_COMPARISON: Mapping[str, _Measure] = {
    WAITING.name: _Measure(),
    RUNNING.name: _Measure(),
    KV_USAGE.name: _Measure(above=1.0 / _BATCH, highest=1.0),
}
_FOR_LIMITS: Mapping[str, _Measure] = {
    WAITING.name: _Measure(batch=_BATCH, others=False),
    RUNNING.name: _Measure(within_batch=1.0, batch=_BATCH, others=False),
    KV_USAGE.name: _Measure(1.0 / _BATCH, 1.0 / _BATCH, highest=1.0, batch=_BATCH, others=False),
}


def comparable_load(candidates: Candidates, column: Column, *, as_reported: bool = False) -> Floats:
    """Return a column for comparisons of candidates, with estimates for NaN in WAITING, RUNNING and KV_USAGE.

    `as_reported` is for callers that compare reports with own requests in flight themselves.
    """
    load = candidates.values(column) if as_reported else _believed(candidates, column)
    return load if is_known(load) else _estimated(candidates, load, _FOR_COMPARISON.get(column.name))


def expected_load(candidates: Candidates, column: Column) -> Floats:
    """Return a column for comparisons with a limit, with such estimates."""
    load = _believed(candidates, column)
    return load if is_known(load) else _estimated(candidates, load, _FOR_LIMITS.get(column.name))


def fill_unknown(load: Floats, candidates: Candidates, *, per_request: float = 1.0) -> Floats:
    """Return any load, for which lower is better, with estimates for NaN; one number for each candidate.

    `per_request` is the assumed load of a request beyond those of all reporting candidates.
    """
    return load if is_known(load) else _estimated(candidates, load, _Measure(above=per_request))


def reported_requests(waiting: Floats, running: Floats) -> Floats:
    """Return the number of reported requests at each endpoint, 0 without a report."""
    requests: Floats = np.fmin(np.fmax(waiting, 0.0), _MOST) + np.fmin(np.fmax(running, 0.0), _MOST)
    return requests


def is_known(load: Floats) -> bool:
    """Return whether no number is NaN."""
    return not len(load) or not isnan(load.item(load.argmin()))  # argmin finds the first NaN


def _believed(candidates: Candidates, column: Column) -> Floats:
    """Return a column, with NaN for endpoints that implausibly report no requests."""
    load = candidates.values(column)
    if column.name not in _FOR_COMPARISON:
        return load
    unbelievable = candidates.derive(_reports_none_and_has_many)
    return load if unbelievable is None else np.where(unbelievable, np.nan, load)


def _reports_none_and_has_many(candidates: Candidates) -> Mask | None:
    """Mark endpoints that report no requests while many own requests are in flight; None if there are none."""
    in_flight = candidates.values(IN_FLIGHT)
    if not len(in_flight) or highest(in_flight) < _MANY:
        return None
    mask: Mask = (in_flight - candidates.values(INHERITED) >= _MANY) & (
        (candidates.values(WAITING) == 0) & (candidates.values(RUNNING) == 0)
    )
    return mask if mask.any() else None


def _estimated(candidates: Candidates, load: Floats, measure: _Measure | None) -> Floats:
    if measure is None:
        return load
    every = candidates.derive(_requests_with_others if measure.others else _requests)
    unknown = np.isnan(load)
    known = np.isfinite(load)
    requests = every[unknown]
    base, busiest, slope = _least_load(requests, every[known], load[known])
    batch = max(measure.batch, busiest)
    with np.errstate(over="ignore"):
        estimate = base + max(measure.above, slope) * np.maximum(requests - batch, 0.0)
        if batch > busiest:
            within = np.minimum(np.maximum(requests, busiest), batch) - busiest
            estimate += max(measure.within_batch, slope) * within
    filled = load.copy()
    filled[unknown] = np.minimum(estimate, measure.highest)
    return filled


def _least_load(requests: Floats, theirs: Floats, load: Floats) -> tuple[Floats, float, float]:
    """Return the least load for these numbers of requests, and requests and load per request of the busiest candidate.

    `theirs` and `load` are those of the reporting candidates. Numbers of requests are limited to that of the busiest.
    """
    if not len(theirs):
        return np.zeros(len(requests)), 0.0, 0.0
    order = theirs.argsort()[::-1]  # the busiest first
    theirs, load = theirs[order], load[order]
    busiest = float(theirs[0])
    per_request = np.maximum(theirs, 1.0)
    slopes = load / per_request
    is_best = slopes == np.minimum.accumulate(slopes)
    best_so_far = np.maximum.accumulate(is_best * np.arange(len(slopes)))
    counted = np.minimum(requests, busiest)
    like = best_so_far[(-theirs).searchsorted(-counted, side="right") - 1]
    base: Floats = load[like] * (np.maximum(counted, theirs[like] < 1) / per_request[like])
    return base, busiest, float(slopes[0])


def _requests(candidates: Candidates) -> Floats:
    """Return the number of requests at each candidate; without a report, only own requests."""
    engine = reported_requests(candidates.values(WAITING), candidates.values(RUNNING))
    requests: Floats = np.maximum(engine, candidates.values(IN_FLIGHT))
    return requests


def _requests_with_others(candidates: Candidates) -> Floats:
    """Return the same, with estimates for unreported requests of others."""
    requests = candidates.derive(_requests)
    silent = np.isnan(candidates.values(WAITING)) & np.isnan(candidates.values(RUNNING))
    own = candidates.values(IN_FLIGHT) - candidates.values(INHERITED)  # inherited requests are known from reports only
    others = (requests - own)[~silent]
    if not len(others):
        return requests
    estimated: Floats = requests + silent * np.sort(others)[(len(others) - 1) // 2]
    return estimated
