# SPDX-License-Identifier: Apache-2.0
"""Runs of profiles and whole configurations on made-up endpoints, for tests of plugins (`epp.framework.testing`)."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from epp.config.assemble import assemble
from epp.config.instances import Builder
from epp.config.load import load_text
from epp.config.profiles import DEFAULT_PICKER
from epp.framework.arrays import Positions
from epp.framework.candidates import Candidates
from epp.framework.clock import Clock
from epp.framework.plugin import Guard, Plugin, SchedulingObserver
from epp.framework.registry import Registry
from epp.framework.request import Request
from epp.framework.result import ProfileResult, SchedulingResult
from epp.framework.roles import Filter, Picker, Producer, RequestHeaders, Scorer
from epp.framework.testing import Member, ProfileRun
from epp.routing.director import Pipeline
from epp.routing.scheduling.profile import Profile, ProfileFilter, WeightedScorer
from epp.routing.scheduling.scheduler import Cycle


def profile_run(
    profile: str | Sequence[Member],
    pool: Candidates,
    request: Request,
    *,
    name: str,
    plugins: Sequence[type[Plugin[Any]]],
    clock: Clock,
) -> ProfileRun:
    """Implement `epp.framework.testing.run_profile`."""
    if isinstance(profile, str):
        pipeline = _pipeline(profile, plugins, clock)
        spec = _named(pipeline.scheduler.profiles, name)
        _prepare(request, pool, (*pipeline.of(RequestHeaders), *pipeline.of(Producer)))
    else:
        weighted = [member if isinstance(member, tuple) else (member, _weight_of(member)) for member in profile]
        spec = _profile_of(weighted, name, clock)
        _prepare(request, pool, [plugin for plugin, _ in weighted])
    watch = _Watch()
    result = Cycle(spec, Guard(watch), watch).run(request, pool.within(spec.name))
    return _stages(result, watch.problems)


def scheduling_run(
    config: str, pool: Candidates, request: Request, plugins: Sequence[type[Plugin[Any]]], clock: Clock
) -> SchedulingResult:
    """Implement `epp.framework.testing.run_scheduling`."""
    pipeline = _pipeline(config, plugins, clock)
    _prepare(request, pool, (*pipeline.of(RequestHeaders), *pipeline.of(Producer)))
    watch = _Watch()
    result = pipeline.scheduler.observed_by(watch).schedule(request, pool)
    if (problem := watch.problems.get(pipeline.scheduler.aggregator.name)) is not None:
        raise ValueError(f"plugin {pipeline.scheduler.aggregator.name!r}: {problem}")
    return result


class _Watch(SchedulingObserver):
    """Records the problems that metrics count."""

    def __init__(self) -> None:
        self.problems: dict[str, str] = {}

    def plugin_failed(self, plugin: str, error: Exception, problem: str) -> None:  # noqa: ARG002
        self.problems[plugin] = problem

    def scores_rejected(self, plugin: str, count: int) -> None:
        self.problems[plugin] = f"{count} scores are NaN or infinite"

    def scores_clamped(self, plugin: str, count: int) -> None:
        self.problems[plugin] = f"{count} scores are below 0 or above 1"


def _pipeline(config: str, plugins: Sequence[type[Plugin[Any]]], clock: Clock) -> Pipeline:
    registry = Registry()
    for cls in plugins:
        registry.register(cls)
    return assemble(load_text(config, "config"), Builder(registry, clock, experimental=True)).pipeline


def _named(profiles: Mapping[str, Profile], name: str) -> Profile:
    found = profiles.get(name) if name or len(profiles) > 1 else next(iter(profiles.values()))
    if found is None:
        raise ValueError(f"no profile is named {name!r}: name one of {', '.join(profiles)}")
    return found


def _profile_of(weighted: Sequence[tuple[Plugin[Any], float]], name: str, clock: Clock) -> Profile:
    pickers = [plugin for plugin, _ in weighted if isinstance(plugin, Picker)]
    if len(pickers) > 1:
        raise ValueError(f"two pickers, {pickers[0].name!r} and {pickers[1].name!r}: keep one")
    if not pickers:
        default = Registry().build(DEFAULT_PICKER, {}, name=DEFAULT_PICKER, clock=clock)
        pickers = [plugin for plugin in (default,) if isinstance(plugin, Picker)]
    return Profile(
        name or "test",
        tuple(ProfileFilter(plugin) for plugin, _ in weighted if isinstance(plugin, Filter) and not plugin.keeps_all),
        tuple(WeightedScorer(plugin, weight) for plugin, weight in weighted if isinstance(plugin, Scorer)),
        pickers[0],
    )


def _weight_of(plugin: Plugin[Any]) -> float:
    return plugin.default_weight if isinstance(plugin, Scorer) else 1.0


def _prepare(request: Request, pool: Candidates, plugins: Iterable[Plugin[Any]]) -> None:
    """Run the plugins that run before profiles; their errors reach the test."""
    members = tuple(plugins)
    for plugin in members:
        if isinstance(plugin, RequestHeaders):
            plugin.request_headers(request)
    for plugin in members:
        if isinstance(plugin, Producer):
            plugin.produce(request, pool)


def _stages(result: ProfileResult, problems: Mapping[str, str]) -> ProfileRun:
    endpoints = result.candidates.snapshot.endpoints.values

    def names(slots: Positions) -> tuple[str, ...]:
        return tuple(endpoint.name for slot in slots if (endpoint := endpoints[int(slot)]) is not None)

    left = names(result.candidates.slots)
    return ProfileRun(
        kept={trace.plugin: names(trace.slots) for trace in result.filters},
        scores={trace.plugin: dict(zip(left, trace.scores.tolist(), strict=True)) for trace in result.scores},
        totals=dict(zip(left, result.totals.tolist(), strict=True)),
        picked=tuple(target.name for target in result.targets),
        problems={trace.plugin: trace.problem for trace in result.filters if trace.problem} | dict(problems),
    )
