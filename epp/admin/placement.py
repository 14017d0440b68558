# SPDX-License-Identifier: Apache-2.0
"""The current ranking of endpoints on the admin port, with the JSON keys of OCM's placement debugger."""

from collections.abc import Iterator, Mapping, Sequence

import msgspec
import numpy as np
from aiohttp import web

from epp.admin.answers import NotFoundError, PickerView, as_json, read_one
from epp.admin.simulate import tried
from epp.explain.building import error_of
from epp.explain.runs import name_of, weighted_sum
from epp.framework.arrays import Floats, Positions
from epp.framework.clusters import ClusterIndex, Clusters
from epp.framework.errors import RequestError
from epp.framework.headers import METHOD, OBJECTIVE, PATHS
from epp.framework.messages import quoted
from epp.framework.request import Headers
from epp.framework.result import FilterTrace, ProfileAttempt, ProfileResult
from epp.framework.snapshot import Snapshot
from epp.routing.director import Simulated, Simulation

PATH = "/api/placement"
_MOST_LISTED = 100
"""Most endpoints in each list."""
_LOCAL = "(local)"
_DIGITS = 6
_COMPLETIONS = "/v1/completions"


def placement_routes(picker: PickerView) -> tuple[web.RouteDef, ...]:

    async def show(request: web.Request) -> web.Response:
        """Return the ranking of one profile for a request without a prompt."""
        model, objective, profile = (read_one(request, name) for name in ("model", "objective", "profile"))

        def work() -> Mapping[str, object]:
            simulation = picker.director.simulation()
            return _shown(picker.pool, simulation, _without_prompt(simulation, model, objective), profile)

        return as_json(await picker.loop.call(work))

    return (web.get(PATH, show),)


def _without_prompt(simulation: Simulation, model: str, objective: str) -> Simulated:
    fields = [(METHOD, "POST" if model else "GET"), (PATHS[0], _COMPLETIONS)]
    if objective:
        fields.append((OBJECTIVE[0], objective))
    body = msgspec.json.encode({"model": model, "prompt": " "}) if model else b""
    return tried(simulation, Headers(fields), body, None, seed=0)


def _shown(pool: str, simulation: Simulation, found: Simulated, wanted: str) -> Mapping[str, object]:
    profiles = simulation.pipeline.scheduler.profiles
    if wanted and wanted not in profiles:
        raise NotFoundError(f"there is no profile {quoted(wanted)}: there are {', '.join(profiles)}")
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
    totals = run.totals if isinstance(run, ProfileResult) else weighted_sum(run.scores, len(slots))
    return {
        "filteredPipelineResults": list(_filters(snapshot, clusters, run.filters)),
        "prioritizeResults": [
            {
                "name": trace.plugin,
                "weight": trace.weight,
                "scores": _by_cluster(clusters, slots, trace.scores),
                "endpointScores": _by_endpoint(snapshot, slots, trace.scores),
            }
            for trace in run.scores
        ],
        "aggregatedScores": list(_totals(snapshot, clusters, slots, totals)) if len(slots) else [],
        "picked": [each.name for each in run.targets[:_MOST_LISTED]] if isinstance(run, ProfileResult) else [],
    }


def _filters(snapshot: Snapshot, clusters: Clusters, traces: Sequence[FilterTrace]) -> Iterator[Mapping[str, object]]:
    """Yield the candidates after each filter, named by the filters so far: `by-label,utilization-filter`."""
    for number, trace in enumerate(traces, 1):
        yield {
            "name": ",".join(each.plugin for each in traces[:number]),
            "filteredClusters": [*dict.fromkeys(_cluster(clusters, slot) for slot in trace.slots.tolist())],
            "filteredEndpoints": [name_of(snapshot, slot) for slot in trace.slots[:_MOST_LISTED].tolist()],
            "before": trace.before,
            "after": trace.after,
        }


def _totals(snapshot: Snapshot, clusters: Clusters, slots: Positions, totals: Floats) -> Iterator[Mapping[str, object]]:
    of_cluster = clusters.numbers[slots]
    best = _by_cluster(clusters, slots, totals)
    for name in sorted(best, key=lambda each: (-best[each], each)):
        members = np.flatnonzero(of_cluster == clusters.names.index("" if name == _LOCAL else name))
        endpoints = _by_endpoint(snapshot, slots[members], totals[members])
        yield {"clusterName": name, "score": best[name], "endpoints": endpoints}


def _by_cluster(clusters: Clusters, slots: Positions, values: Floats) -> Mapping[str, float]:
    """Return the best value of each cluster."""
    best: dict[str, float] = {}
    for slot, value in zip(slots.tolist(), values.tolist(), strict=True):
        name = _cluster(clusters, slot)
        best[name] = max(best.get(name, value), value)
    return {name: round(value, _DIGITS) for name, value in best.items()}


def _by_endpoint(snapshot: Snapshot, slots: Positions, values: Floats) -> Mapping[str, float]:
    """Return the largest values by endpoint, best first."""
    order = np.argsort(-values, kind="stable")[:_MOST_LISTED].tolist()
    return {name_of(snapshot, slots.item(position)): round(values.item(position), _DIGITS) for position in order}


def _cluster(clusters: Clusters, slot: int) -> str:
    return clusters.names[clusters.numbers.item(slot)] or _LOCAL
