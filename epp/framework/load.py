# SPDX-License-Identifier: Apache-2.0
"""Load of endpoints that do not report it: those without a metrics page, or whose page is gone or stale.

The rule, for every scorer and filter: a number that an endpoint reports counts as it is; one that it does not report
(NaN) is estimated from the requests that this picker has in flight there:

    requests = the larger of the running and waiting requests that an endpoint reports and of our own in flight there;
               without a report, our own, and as many of others as at the (lower) median of those that report
    load     = the least load per request of the candidates that report and hold as many requests or more, times
               requests; for each request above the busiest of these, 1 more (of a KV cache 1/256)

An endpoint without a report thus ties with the best that does at the same number of requests, and is worse than all of
them once it holds more: it is neither starved nor flooded. Where no candidate reports, own requests in flight decide.
An endpoint that reports no requests at all while 8 or more of our own are in flight there counts as one that does not
report: it shows a page of another model, say.

A limit, such as a full queue, is another question: 40 requests are a queue only where an engine is known to run fewer
at once. Held against limits (`expected_load`), requests of others do not count where nothing reports them, and those
above the busiest candidate that reports are running, not waiting, up to 256, the default of vLLM.

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
"""Columns that the estimates are made of; a plugin that calls one of these functions lists them in `may_read`."""

_MANY = 8.0
"""Own requests in flight; reports are younger than the time in which so many are sent and answered."""
_BATCH = 256.0
"""Default number of requests that an engine runs at once."""
_MOST = 1e12
"""Beyond any engine: what pages claim may not be finite in sums."""


class _Measure(NamedTuple):
    """Load of one request, where no candidate shows it, and how much is possible."""

    within_batch: float = 0.0
    above: float = 1.0
    highest: float = _MOST
    batch: float = 0.0
    """Requests up to which `within_batch` applies."""
    others: bool = True
    """Whether requests of others count where nothing reports them."""


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
    """Return a column of each candidate, to compare them; in WAITING, RUNNING and KV_USAGE estimates replace NaN.

    `as_reported` is for those who hold own requests in flight against it themselves.
    """
    load = candidates.values(column) if as_reported else _believed(candidates, column)
    return load if is_known(load) else _estimated(candidates, load, _FOR_COMPARISON.get(column.name))


def expected_load(candidates: Candidates, column: Column) -> Floats:
    """Return the same, to hold it against a limit."""
    load = _believed(candidates, column)
    return load if is_known(load) else _estimated(candidates, load, _FOR_LIMITS.get(column.name))


def fill_unknown(load: Floats, candidates: Candidates, *, per_request: float = 1.0) -> Floats:
    """Return any load, one number for each candidate and the lower the better, with estimates in place of NaN.

    `per_request` is the load of a request, where no candidate shows it.
    """
    return load if is_known(load) else _estimated(candidates, load, _Measure(above=per_request))


def reported_requests(waiting: Floats, running: Floats) -> Floats:
    """Return the number of requests at each endpoint by its report, 0 for none."""
    requests: Floats = np.fmin(np.fmax(waiting, 0.0), _MOST) + np.fmin(np.fmax(running, 0.0), _MOST)
    return requests


def is_known(load: Floats) -> bool:
    """Return whether no number is NaN."""
    return not len(load) or not isnan(load.item(load.argmin()))  # the first NaN, where there is one


def _believed(candidates: Candidates, column: Column) -> Floats:
    """Return a column, with NaN for endpoints whose report of no requests cannot be."""
    load = candidates.values(column)
    if column.name not in _FOR_COMPARISON:
        return load
    unbelievable = candidates.derive(_reports_none_and_has_many)
    return load if unbelievable is None else np.where(unbelievable, np.nan, load)


def _reports_none_and_has_many(candidates: Candidates) -> Mask | None:
    """Mark endpoints that report no requests while many of our own are in flight; None for none."""
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
    base, busiest, slope = _like_the_best(requests, every[known], load[known])
    batch = max(measure.batch, busiest)
    with np.errstate(over="ignore"):
        estimate = base + max(measure.above, slope) * np.maximum(requests - batch, 0.0)
        if batch > busiest:
            within = np.minimum(np.maximum(requests, busiest), batch) - busiest
            estimate += max(measure.within_batch, slope) * within
    filled = load.copy()
    filled[unknown] = np.minimum(estimate, measure.highest)
    return filled


def _like_the_best(requests: Floats, theirs: Floats, load: Floats) -> tuple[Floats, float, float]:
    """Return the least load at so many requests, and the requests and the load per request of the busiest.

    `theirs` and `load` are those of the candidates that report. More requests than the busiest has count as its own.
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
    """Return the number of requests at each candidate; ours alone where there is no report."""
    engine = reported_requests(candidates.values(WAITING), candidates.values(RUNNING))
    requests: Floats = np.maximum(engine, candidates.values(IN_FLIGHT))
    return requests


def _requests_with_others(candidates: Candidates) -> Floats:
    """Return the same, where those of others are guessed if there is no report."""
    requests = candidates.derive(_requests)
    silent = np.isnan(candidates.values(WAITING)) & np.isnan(candidates.values(RUNNING))
    own = candidates.values(IN_FLIGHT) - candidates.values(INHERITED)  # where nothing is reported, nothing is inherited
    others = (requests - own)[~silent]
    if not len(others):
        return requests
    guessed: Floats = requests + silent * np.sort(others)[(len(others) - 1) // 2]
    return guessed
