# SPDX-License-Identifier: Apache-2.0
"""Pages of a picker for operators: `/healthz`, scores for a hub, explanations of placements, admin routes, plugins."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from http import HTTPStatus
from typing import Any

from aiohttp import web

from epp.admin.answers import (
    AdminError,
    Counts,
    EndpointCounts,
    HeldRequests,
    LoopCalls,
    PickerView,
    endpoint_counts,
    held_requests,
    read_one,
)
from epp.admin.configuration import config_routes, plugin_states
from epp.admin.endpoints import allocation_routes, endpoint_routes, idle_node_routes
from epp.admin.placement import placement_routes
from epp.admin.port import page_routes
from epp.admin.quotas import quota_routes
from epp.admin.simulate import decision_routes, simulation_routes
from epp.app.kubernetes import Kubernetes, hubs_health
from epp.app.processes import Processes
from epp.app.running_config import RunningConfig
from epp.app.settings import PickerSettings
from epp.config import Assembly, Builder, ConfigState, assemble, load_text
from epp.config.lint import texts_in
from epp.explain.recorder import Recorder
from epp.explain.shadows import Shadows
from epp.extproc.budgets import Budgets
from epp.framework.clock import Clock
from epp.framework.files import only_files
from epp.framework.messages import quoted
from epp.framework.plugin import Plugin
from epp.framework.plugin_status import HasInputs
from epp.kube.readers import ClusterReaders
from epp.runtime.supervisor import Supervisor
from epp.sharing.channel import ChannelClosedError
from epp.telemetry.endpoints import MAX_ROWS
from epp.telemetry.metrics import Metrics
from epp.telemetry.pool_series import cluster_scores

_WORKER_SECONDS = 2.0
"""Longest wait of a page for the response of a worker."""


@dataclass(frozen=True, eq=False)
class Operators:
    """Answers of one picker."""

    settings: PickerSettings
    clock: Clock
    running: RunningConfig
    metrics: Metrics
    recorder: Recorder | None
    shadows: Shadows
    processes: Processes
    supervisor: Supervisor
    kubernetes: Kubernetes | None
    readers: ClusterReaders
    builder: Callable[[], Builder]
    """Returns the builder of the next configuration."""
    config: Callable[[], ConfigState]
    budgets: Callable[[], Budgets]
    unready_reason: Callable[[], str]
    """Returns the reason that the picker is not ready, in one sentence; empty if it is ready."""
    counts: EndpointCounts = field(default_factory=EndpointCounts)

    def health(self) -> Mapping[str, object]:
        """Return the content of `/healthz`, of all processes; thread-safe."""
        return self.processes.health(self.own_health())

    def own_health(self) -> dict[str, object]:
        """Return the health of this process; thread-safe."""
        config = self.config()
        states = self.running.endpoint_states
        unreachable = [state for state in states if not state.used]
        stream = self.processes.stream
        none = "no endpoint can be reached" if states and len(unreachable) == len(states) else ""
        reason = self.unready_reason() or none
        return {
            "ready": not reason,
            **({"reason": reason} if reason else {}),
            "pool": self.settings.pool_name,
            "endpoints": len(states),
            "reachable": len(states) - len(unreachable),
            "unreachable": [state.as_fields() for state in unreachable[:MAX_ROWS]],
            "attention": [state.as_fields() for state in states if state.used and state.needs_attention][:MAX_ROWS],
            **({"sources": [state._asdict() for state in sources]} if (sources := self.running.source_states) else {}),
            "config": {"generation": config.generation, "refused": config.refused or None},
            "inherited_requests": self.running.inherited,
            **self._conditional_health(),
            "failing_tasks": {**self.supervisor.failing, **self.running.failing_tasks},
            **({} if self.kubernetes is None else self.kubernetes.health),
            **hubs_health(self.readers.hubs.clusters),
            **({} if stream is None else {"shared_state": stream.health}),
            "lost_log_lines": self.settings.lost_log_lines(),
            **({} if self.settings.tracing is None else {"tracing": self.settings.tracing.counts.as_fields}),
            **inputs_health(self.input_owners()),
        }

    def _conditional_health(self) -> Mapping[str, object]:
        """Return the parts that are present only under some conditions."""
        found: dict[str, object] = {}
        if (line := self.running.director.line) is not None:
            longest = 0.0 if line.since is None else max(0.0, self.clock.now() - line.since)
            oldest = round(longest, 1)
            found["queued"] = {"requests": line.requests, "bytes": line.size_bytes, "longest_seconds": oldest}
        if spent := [each for each in self.budgets() if each.refusals]:
            found["budgets_used_up"] = {
                each.name: {"used": each.used, "limit": each.limit, "refusals": each.refusals} for each in spent
            }
        if alerts := self.metrics.quotas.alerts:
            found |= {"quota_alerts": alerts[:MAX_ROWS], "quotas_almost_used_up": len(alerts)}
        if self.recorder is not None and (file := self.recorder.file) is not None and file.problem:
            found["decision_file"] = {"problem": file.problem, "lost": file.lost}
        if shadows := self.shadows.problems:
            found["shadow_profiles_disabled"] = shadows
        if degraded := degraded_plugins(self.running.assembly.plugins):
            found["degraded_plugins"] = degraded[:MAX_ROWS]
        return found

    def cluster_scores(self, local: str) -> Mapping[str, object]:
        """Return the free capacity of each cluster; thread-safe."""
        snapshot = self.running.store.latest
        return cluster_scores(snapshot, self.settings.pool_name, self.clock.utc(), local=local)

    def explanations(self) -> Mapping[str, object]:
        """Return explanations of the decisions of placements, by name; thread-safe."""
        return {name: each for plugin in self.running.assembly.plugins for name, each in plugin.explanations.items()}

    def admin_routes(self) -> Sequence[web.RouteDef]:
        """Return the routes of the admin port, for the running event loop."""
        running = self.running
        view = PickerView(
            loop=LoopCalls(asyncio.get_running_loop()),
            pool=self.settings.pool_name,
            director=running.director,
            snapshot=running.store.snapshot,
            clock=self.clock,
            assembly=lambda: running.assembly,
            config=self.config,
            states=lambda: running.endpoint_states,
            counts=self._endpoint_counts,
            source_of=running.source_of,
            held=self._held,
            tenants=lambda: running.tenants,
            share_quota=self.processes.send_quota,
            build=self._on_trial,
            complete=self.processes.complete,
        )
        return admin_routes(view, self.recorder)

    def _on_trial(self, text: str) -> Assembly:
        """Return a configuration on trial; called in a thread. Raises ConfigurationError."""
        return on_trial(text, self.builder(), self.running.assembly)

    async def _held(self) -> HeldRequests:
        """Return the open requests of all processes by endpoint and tenant."""
        own = held_requests(self.running.director)
        others = await self.processes.responses("held", _WORKER_SECONDS)
        return own.with_others(tuple(others.values()))

    async def _endpoint_counts(self) -> Counts:
        """Return the picked, served and failed requests of all processes by endpoint."""
        others = await self.processes.responses("counts", _WORKER_SECONDS)
        own = endpoint_counts(self.running.store.snapshot(), self.metrics.scheduling.picks)
        return self.counts.with_others(own, others)

    async def plugin_states(self, request: web.Request) -> Mapping[str, object]:
        """Return plugin states by name, those of a worker if the request names one; raises AdminError."""
        workers, worker = self.processes.workers, read_one(request, "worker")
        channels = {} if workers is None else {str(number): channel for number, channel in workers.channels.items()}
        if not worker:
            await self.processes.complete()
            states = await plugin_states(self.running.assembly.instances.by_name, lambda: self.running.store.latest)
            return {**({} if workers is None else {"process": "main", "workers": [*channels]}), "plugins": states}
        if worker not in channels:
            known = f"write one of {', '.join(channels)}" if channels else "leave it out"
            raise AdminError(HTTPStatus.NOT_FOUND, "NotFound", f"there is no worker {quoted(worker)}: {known}")
        try:
            states = await channels[worker].call("plugins", most_seconds=_WORKER_SECONDS)
        except ChannelClosedError as error:
            raise AdminError(HTTPStatus.SERVICE_UNAVAILABLE, "Unavailable", f"worker {worker}: {error}") from error
        return {"process": f"worker {worker}", "plugins": states}

    def input_owners(self) -> Sequence[HasInputs]:
        """Return all components that read files or objects: plugins, policies, the cluster and the discovery."""
        others = (self.settings.policies, self.kubernetes, self.settings.discovery)
        return (*self.running.assembly.plugins, *(each for each in others if each is not None))


def degraded_plugins(plugins: Sequence[Plugin[Any]]) -> Sequence[Mapping[str, str]]:
    """Return plugins that work with incomplete data, each with the reason."""
    return [{"plugin": plugin.name, "problem": each} for plugin in plugins for each in plugin.degraded]


def inputs_health(owners: Sequence[HasInputs]) -> Mapping[str, object]:
    """Return rejected versions and ignored values of files and objects."""
    return {
        "not_in_effect": [
            {"plugin": owner.name, **asdict(problem)} for owner in owners for problem in owner.inputs.problems
        ],
        "ignored_values": [
            {"plugin": owner.name, **asdict(value)} for owner in owners for value in owner.inputs.ignored[:MAX_ROWS]
        ],
    }


def admin_routes(picker: PickerView, recorder: Recorder | None) -> Sequence[web.RouteDef]:
    """Return all routes; those of decisions only with a recorder."""
    return (
        *page_routes(),
        *quota_routes(picker.loop, lambda: picker.director.quotas, picker.tenants, picker.share_quota),
        *(() if recorder is None else decision_routes(picker.loop, recorder)),
        *simulation_routes(picker),
        *placement_routes(picker),
        *endpoint_routes(picker),
        *allocation_routes(picker),
        *idle_node_routes(picker),
        *config_routes(picker),
    )


def on_trial(text: str, builder: Builder, in_effect: Assembly) -> Assembly:
    """Return a configuration, assembled from its text, that does not observe, follow or collect anything.

    It may only name files that the configuration in effect names, and the object files of the builder, because errors
    quote the content of files. Raises ConfigurationError.
    """
    named = (value for plugin in in_effect.loaded.model.plugins for value in texts_in(plugin.parameters))
    with only_files(tuple(named), below=(*builder.object_paths, *builder.any_pool_object_paths)):
        return assemble(load_text(text, "config"), builder)
