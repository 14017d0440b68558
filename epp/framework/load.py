"""Load of endpoints that do not report it: those without a metrics page, or whose page is gone or stale.

The rule, for every scorer and filter: a number that an endpoint reports counts as it is; one that it does not report
(NaN) is estimated from what the picker knows of every endpoint, its own requests in flight there:

    requests = the larger of the running and waiting requests that an endpoint reports and of our own in flight there;
               without a report, our own, and as many of others as at the median of the candidates that report
    load     = the least load per request of the candidates that report and hold as many requests or more, times
               requests; for each request above the busiest of these, 1 more (of a KV cache 1/256)

An endpoint without a report thus ties with the best that does at the same number of requests, and is worse than all of
them once it holds more: it is neither starved nor flooded. Where no candidate reports, own requests in flight decide.

A limit, such as a full queue, is another question: 40 requests are a queue only where an engine is known to run fewer
at once. Held against limits (`expected_load`), requests of others do not count where nothing reports them, and those
above the busiest candidate that reports are running, not waiting, up to 256, the default of vLLM.

Statistics of a whole pool, such as its mean saturation, are those of the endpoints that report.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from epp.framework.arrays import Floats
from epp.framework.candidates import Candidates
from epp.framework.snapshot import IN_FLIGHT, KV_USAGE, RUNNING, WAITING, Column

LOAD_INPUTS: tuple[Column, ...] = (WAITING, RUNNING, IN_FLIGHT)
"""Columns that the estimates are made of; a plugin that calls one of these functions lists them in `may_read`."""

_BATCH = 256.0
"""Requests that an engine runs at once, where nothing else is known."""
_MOST = 1e12
"""Beyond any engine: what pages claim may not be finite in sums."""


class _Measure(NamedTuple):
    """Load of one request, where no candidate shows it, and the highest load."""

    within_batch: float = 0.0
    above: float = 1.0
    highest: float = _MOST


_MEASURES: Mapping[str, _Measure] = {
    WAITING.name: _Measure(),
    RUNNING.name: _Measure(within_batch=1.0),
    KV_USAGE.name: _Measure(1.0 / _BATCH, 1.0 / _BATCH, highest=1.0),
}


def comparable_load(candidates: Candidates, column: Column) -> Floats:
    """Return a column of each candidate, to compare them; in WAITING, RUNNING and KV_USAGE estimates replace NaN."""
    values, measure = candidates.values(column), _MEASURES.get(column.name)
    if measure is None:
        return values
    return _filled(values, candidates, measure._replace(within_batch=0.0), batch=0.0, others=True)


def expected_load(candidates: Candidates, column: Column) -> Floats:
    """Return the same, to hold it against a limit."""
    values, measure = candidates.values(column), _MEASURES.get(column.name)
    return values if measure is None else _filled(values, candidates, measure, batch=_BATCH, others=False)


def fill_unknown(load: Floats, candidates: Candidates, *, per_request: float = 1.0) -> Floats:
    """Return any load, one number for each candidate and the lower the better, with estimates in place of NaN.

    `per_request` is the load of a request, where no candidate shows it.
    """
    return _filled(load, candidates, _Measure(above=per_request), batch=0.0, others=True)


def _filled(load: Floats, candidates: Candidates, measure: _Measure, *, batch: float, others: bool) -> Floats:
    unknown = np.isnan(load)
    if not unknown.any():
        return load
    requests = _requests_at(candidates, others=others)
    known = np.isfinite(load)
    base, busiest, slope = _like_the_best(requests, requests[known], load[known])
    batch = max(batch, busiest)
    within = np.clip(requests, busiest, batch) - busiest
    above = np.maximum(requests - batch, 0.0)
    with np.errstate(over="ignore"):
        estimate = base + max(measure.within_batch, slope) * within + max(measure.above, slope) * above
    return np.where(unknown, np.minimum(estimate, measure.highest), load)


def _like_the_best(requests: Floats, theirs: Floats, load: Floats) -> tuple[Floats, float, float]:
    """Return the least load at so many requests, and the requests and the load per request of the busiest.

    `theirs` and `load` are those of the candidates that report. More requests than the busiest has count as its own.
    """
    if not len(theirs):
        return np.zeros(len(requests)), 0.0, 0.0
    order = np.argsort(theirs)[::-1]  # the busiest first
    theirs, load = theirs[order], load[order]
    slopes = np.divide(load, theirs, out=load.copy(), where=theirs >= 1)
    busiest = float(theirs[0])
    is_best = slopes == np.minimum.accumulate(slopes)
    best_so_far = np.maximum.accumulate(np.where(is_best, np.arange(len(slopes)), 0))
    counted = np.minimum(requests, busiest)
    like = best_so_far[np.searchsorted(-theirs, -counted, side="right") - 1]
    share = np.divide(counted, theirs[like], out=np.ones(len(requests)), where=theirs[like] >= 1)
    return load[like] * share, busiest, float(slopes[0]) if busiest >= 1 else 0.0


def _requests_at(candidates: Candidates, *, others: bool) -> Floats:
    """Return the number of requests at each candidate; those of `others` are a guess where there is no report."""
    own, waiting, running = (candidates.values(column) for column in (IN_FLIGHT, WAITING, RUNNING))
    engine = sum(np.clip(np.where(np.isfinite(known), known, 0.0), 0.0, _MOST) for known in (waiting, running))
    reports = np.isfinite(waiting) | np.isfinite(running)
    guess = float(np.median(np.maximum(engine - own, 0.0)[reports])) if others and reports.any() else 0.0
    return np.where(reports, np.maximum(engine, own), own + guess)
