# SPDX-License-Identifier: Apache-2.0
"""The ranking of now on the admin port, as a funnel, with the keys of the placement debugger of OCM."""

from collections.abc import Iterator, Mapping, Sequence
from http import HTTPStatus

import msgspec
import numpy as np
from aiohttp import web

from epp.admin.answers import AdminError, PickerView, as_json, read_one
from epp.explain.building import error_of
from epp.framework.arrays import Floats, Positions
from epp.framework.clusters import ClusterIndex, Clusters
from epp.framework.errors import RequestError
from epp.framework.headers import METHOD, OBJECTIVE, PATHS
from epp.framework.messages import quoted
from epp.framework.request import Headers
from epp.framework.result import FilterTrace, ProfileAttempt, ProfileResult, ScoreTrace
from epp.framework.snapshot import Snapshot
from epp.pool.clusters.placement import ClusterTotal
from epp.routing.director import Simulated, Simulation

PATH = "/api/placement"
_MOST_LISTED = 100
"""Endpoints in each list."""
_LOCAL = "(local)"
_DIGITS = 6
_COMPLETIONS = "/v1/completions"


class _FilterResult(msgspec.Struct, frozen=True, rename="camel"):
    name: str
    """The filters so far: `by-label,utilization-filter`."""
    filtered_clusters: tuple[str, ...]
    """Those that are left."""
    filtered_endpoints: tuple[str, ...]
    before: int
    after: int


class _PrioritizeResult(msgspec.Struct, frozen=True, rename="camel"):
    name: str
    weight: float
    scores: Mapping[str, float]
    """Of the best endpoint of each cluster, 0 to 1."""
    endpoint_scores: Mapping[str, float]


class _Total(ClusterTotal, frozen=True, rename="camel"):
    endpoints: Mapping[str, float]
    """Totals, best first."""


def placement_routes(picker: PickerView) -> tuple[web.RouteDef, ...]:

    async def show(request: web.Request) -> web.Response:
        """Answer with the ranking for a request without a prompt, of one profile."""
        model, objective, profile = (read_one(request, name) for name in ("model", "objective", "profile"))

        def work() -> Mapping[str, object]:
            simulation = picker.director.simulation()
            return _shown(picker.pool, simulation, _tried(simulation, model, objective), profile)

        return as_json(await picker.call(work))

    return (web.get(PATH, show),)


def _tried(simulation: Simulation, model: str, objective: str) -> Simulated:
    fields = [(METHOD, "POST" if model else "GET"), (PATHS[0], _COMPLETIONS)]
    if objective:
        fields.append((OBJECTIVE[0], objective))
    headers, body = Headers(fields), msgspec.json.encode({"model": model, "prompt": " "}) if model else b""
    try:
        incoming = simulation.read(headers, body, None)
    except RequestError as error:
        return simulation.refusal(headers, error)
    return simulation.run(incoming, seed=0)


def _shown(pool: str, simulation: Simulation, found: Simulated, wanted: str) -> Mapping[str, object]:
    profiles = simulation.pipeline.scheduler.profiles
    if wanted and wanted not in profiles:
        message = f"there is no profile {quoted(wanted)}: there are {', '.join(profiles)}"
        raise AdminError(HTTPStatus.NOT_FOUND, "NotFound", message)
    outcome = found.outcome
    runs: Mapping[str, ProfileResult | ProfileAttempt | None]
    if isinstance(outcome, RequestError):
        runs = {} if outcome.scheduling is None else outcome.scheduling.profiles
        name = wanted or next(iter(runs), "")
    else:
        runs, name = outcome.profiles, wanted or outcome.primary.profile
    run = runs.get(name)
    return {
        "placement": {"pool": pool, "profile": name, "profiles": list(profiles)},
        **({} if run is None else _funnel(found.snapshot, run)),
        **({"error": error_of(outcome)} if isinstance(outcome, RequestError) else {}),
        **({"waits": found.waits} if found.waits else {}),
    }


def _funnel(snapshot: Snapshot, run: ProfileResult | ProfileAttempt) -> Mapping[str, object]:
    clusters = ClusterIndex().of(snapshot)
    slots = run.candidates.slots if not isinstance(run, ProfileAttempt) or not run.filters else run.filters[-1].slots
    totals = run.totals if isinstance(run, ProfileResult) else _sum(run.scores, len(slots))
    return {
        "filteredPipelineResults": list(_filters(snapshot, clusters, run.filters)),
        "prioritizeResults": [
            _PrioritizeResult(
                trace.plugin,
                trace.weight,
                _by_cluster(clusters, slots, trace.scores),
                _by_endpoint(snapshot, slots, trace.scores),
            )
            for trace in run.scores
        ],
        "aggregatedScores": list(_totals(snapshot, clusters, slots, totals)) if len(slots) else [],
        "picked": [each.name for each in run.targets[:_MOST_LISTED]] if isinstance(run, ProfileResult) else [],
    }


def _sum(scores: Sequence[ScoreTrace], count: int) -> Floats:
    totals = np.zeros(count)
    for trace in scores:
        totals = totals + trace.weight * trace.scores
    return totals


def _filters(snapshot: Snapshot, clusters: Clusters, traces: Sequence[FilterTrace]) -> Iterator[_FilterResult]:
    names: list[str] = []
    for trace in traces:
        names.append(trace.plugin)
        left = dict.fromkeys(_cluster(clusters, slot) for slot in trace.slots.tolist())
        yield _FilterResult(
            ",".join(names),
            tuple(left),
            tuple(_name(snapshot, slot) for slot in trace.slots[:_MOST_LISTED].tolist()),
            trace.before,
            trace.after,
        )


def _totals(snapshot: Snapshot, clusters: Clusters, slots: Positions, totals: Floats) -> Iterator[_Total]:
    of_cluster = clusters.numbers[slots]
    best = _by_cluster(clusters, slots, totals)
    for name in sorted(best, key=lambda each: (-best[each], each)):
        members = np.flatnonzero(of_cluster == clusters.names.index("" if name == _LOCAL else name))
        yield _Total(name, best[name], _by_endpoint(snapshot, slots[members], totals[members]))


def _by_cluster(clusters: Clusters, slots: Positions, values: Floats) -> Mapping[str, float]:
    """Return the largest value of each cluster."""
    best: dict[str, float] = {}
    for slot, value in zip(slots.tolist(), values.tolist(), strict=True):
        name = _cluster(clusters, slot)
        best[name] = max(best.get(name, value), value)
    return {name: round(value, _DIGITS) for name, value in best.items()}


def _by_endpoint(snapshot: Snapshot, slots: Positions, values: Floats) -> Mapping[str, float]:
    """Return the largest values by endpoint, best first."""
    order = np.argsort(-values, kind="stable")[:_MOST_LISTED].tolist()
    return {_name(snapshot, slots.item(position)): round(values.item(position), _DIGITS) for position in order}


def _cluster(clusters: Clusters, slot: int) -> str:
    return clusters.names[clusters.numbers.item(slot)] or _LOCAL


def _name(snapshot: Snapshot, slot: int) -> str:
    endpoint = snapshot.endpoints.values[slot]
    return "" if endpoint is None else endpoint.name
