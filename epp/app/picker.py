# SPDX-License-Identifier: Apache-2.0
"""A picker: its servers, and its running configuration, which follows a file."""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import numpy.ma  # noqa: F401  the first call of np.median would import it, and delay requests
import structlog

from epp.admin.answers import endpoint_counts, held_requests
from epp.admin.configuration import plugin_states
from epp.app.kubernetes import IdleNodePods, Kubernetes
from epp.app.operators import Operators
from epp.app.pages import Pages, show_program
from epp.app.processes import Processes
from epp.app.running_config import RunningConfig
from epp.app.settings import PickerSettings, of_worker
from epp.config import Assembly, Builder, ConfigFollower, ConfigState, LoadedConfig, assemble, default_config
from epp.explain.recorder import Recorder, Setup, recorder_of, show_records
from epp.explain.shadows import Shadows
from epp.extproc.budgets import Claim
from epp.extproc.exchange import ExchangeSettings, GatewayTraits
from epp.extproc.server import ExtProcServer
from epp.extproc.session import Session
from epp.framework import SystemClock
from epp.framework.errors import ConfigurationError
from epp.framework.plugin import Plugin, SchedulingObserver
from epp.framework.registry import Registry
from epp.framework.roles import Shadowing
from epp.kube.access import KubeApi
from epp.kube.objects.inference import H2C
from epp.kube.readers import ClusterReaders
from epp.pool.discovery.several import PATIENCE_SECONDS
from epp.routing.datastore import Datastore
from epp.routing.director import Director
from epp.runtime.supervisor import Supervisor
from epp.sharing.channel import Handler
from epp.sharing.link import ConfigInEffect, Link
from epp.sharing.metrics import packed_metrics
from epp.sharing.stream import show_shared_state
from epp.telemetry.flow_series import show_inflight
from epp.telemetry.metrics import Metrics
from epp.telemetry.plugin_metrics import LoopLag, PluginMetrics
from epp.telemetry.pool_series import show_unknown_accelerators
from epp.telemetry.process_series import (
    StreamSeries,
    show_extproc,
    show_hubs,
    show_inputs,
    show_leader,
    show_sources,
    show_watches,
)

_log = structlog.get_logger()


class Picker:
    """A picker of one pool, between `start` and `stop`."""

    def __init__(self, settings: PickerSettings) -> None:
        """Build all components of the configuration; raises ConfigurationError."""
        self._settings = settings = settings if settings.link is None else of_worker(settings)
        tracer = None if settings.tracing is None else settings.tracing.tracer
        self._exchange = ExchangeSettings(
            **asdict(settings.responses),
            emit_scores=settings.emit_endpoint_scores,
            max_body_bytes=settings.server.budgets.max_body_bytes,
            ignored_headers=settings.ignored_headers,
            tracer=tracer,
        )
        self._clock = SystemClock()
        self._registry = Registry(modules=settings.plugin_modules)
        self.metrics = Metrics(
            settings.pool_name,
            self._clock,
            legacy=settings.page.legacy_metrics,
            stale_seconds=settings.stale_metrics_seconds,
        )
        self._lag: LoopLag | None = None
        if settings.cluster is None:
            self._lag = show_program(self.metrics.families, settings, self.metrics.slowest_call)
        self._scheduling: SchedulingObserver = self.metrics
        if settings.tracing is not None:
            self._scheduling = settings.tracing.beside(self.metrics)
        loaded = settings.config or default_config()
        self._kubernetes: Kubernetes | None = None
        discovery = settings.discovery
        if settings.kubernetes is not None:
            self._kubernetes = kubernetes = Kubernetes(
                settings.kubernetes, self._clock, observer=self.metrics, shared=settings.cluster, hubs=settings.hubs
            )
            if settings.cluster is None:
                show_watches(self.metrics.registry, lambda: kubernetes.cluster.watches)
            if (election := kubernetes.election) is not None:
                show_leader(self.metrics.registry, election.settings.name, is_leader=lambda: election.is_leader)
            discovery = kubernetes.discovery
        if settings.link is not None:
            discovery = settings.link
        self.recorder = self._recorder()
        self._shadows = Shadows(self.metrics.registry, self.recorder)
        self._supervisor = Supervisor(observer=self.metrics)
        self._readers = (
            ClusterReaders(None, "", supervisor=self._supervisor, hubs=settings.hubs)
            if self._kubernetes is None
            else self._kubernetes.readers
        )
        observers = (self.recorder, self._shadows, *settings.observers, tracer)
        self._running = RunningConfig(
            self._build(loaded, {}),
            self._clock,
            self.metrics,
            settings,
            discovery=discovery,
            readers=self._readers,
            observers=tuple(each for each in observers if each is not None),
            ask=None if settings.link is None else settings.link.ask,
        )
        self._use_shadows(self._running.assembly)
        if settings.policies is not None:
            self.director.use_policies(settings.policies.policies)
        self._follower: ConfigFollower | None = None
        if settings.watch_config is not None:
            self._follower = ConfigFollower(
                settings.watch_config,
                loaded,
                default=settings.default_config,
                generation=1 if self.link is None or self.link.config is None else self.link.config.generation,
                build=self._build_next,
                watch=settings.watches_config,
                observer=self.metrics,
                clock=self._clock,
            )
        self._processes = Processes(
            settings,
            self.director,
            self.store,
            lambda: self._running.assembly,
            self._clock,
            config=self._config_in_effect,
        )
        self.operators = Operators(
            settings,
            self._clock,
            self._running,
            self.metrics,
            self.recorder,
            self._shadows,
            self._processes,
            self._supervisor,
            self._kubernetes,
            self._readers,
            builder=lambda: self._builder(self.plugins),
            config=lambda: self.config,
            budgets=lambda: self._extproc.budgets,
            unready_reason=self._unready_reason,
        )
        self._show_series()
        if self._processes.stream is not None:
            show_shared_state(self.metrics.registry, self._processes.stream)
        self._is_started = self._is_ready = self._is_stopping = False
        self._own_api: KubeApi | None = None
        registry = self.metrics.registry
        shown = self._processes.page_of(registry)
        self._pages = Pages(settings, registry, shown, self.operators, self._reviewing_api)
        self._extproc = self._extproc_server()
        show_extproc(registry, lambda: self._extproc.budgets, lambda: self._extproc.protocol_errors)

    def _show_series(self) -> None:
        """Add metrics that read components when the page is read, because a reload may replace the components."""
        registry = self.metrics.registry
        show_inputs(registry, self.operators.input_owners)
        registry.register(
            PluginMetrics(lambda: self._running.assembly.plugins, legacy=self._settings.page.legacy_metrics)
        )
        show_sources(registry, lambda: self._running.source_states)
        show_inflight(registry, self.store, lambda: self._running.assembly.plugins)
        show_unknown_accelerators(registry, lambda: self._running.assembly.plugins)
        show_hubs(registry, lambda: self._readers.hubs.clusters.values())  # noqa: PLW0108  a copy each time

    def _recorder(self) -> Recorder | None:
        """Return the recorder of decisions; None if decisions are not recorded."""
        if self._settings.decisions is None:
            return None
        setup = Setup(
            profiles=lambda: self._running.assembly.pipeline.scheduler.profiles,
            generation=lambda: self.config.generation,
            snapshot=lambda: self._running.store.latest,
        )
        link = self.link
        send = None if link is None else partial(link.send, "decision")
        recorder = recorder_of(self._settings.decisions, self._clock, setup, send)
        if link is not None and recorder.prefix_key:
            recorder.prefix_key = link.key
        show_records(self.metrics.registry, recorder)
        return recorder

    def _extproc_server(self) -> ExtProcServer:
        settings, tracer = self._settings, self._exchange.tracer
        return ExtProcServer(
            self._session,
            settings.server if tracer is None else replace(settings.server, metadata_names=tracer.fields),
            StreamSeries(self.metrics.families) if settings.page.stream_metrics else None,
            self._processes.acceptor,
        )

    @property
    def link(self) -> Link | None:
        """Connection of a worker to the main process; None in the main process."""
        return self._settings.link

    @property
    def store(self) -> Datastore:
        return self._running.store

    @property
    def director(self) -> Director:
        return self._running.director

    @property
    def port(self) -> int:
        """Port of the ext_proc server; 0 for a unix socket."""
        return self._extproc.port

    @property
    def addresses(self) -> Mapping[str, str]:
        """Addresses of open servers by name."""
        return {**self._extproc.addresses, **self._pages.addresses}

    @property
    def open_streams(self) -> int:
        return self._extproc.open_streams

    @property
    def metadata_namespaces(self) -> frozenset[str]:
        """Namespaces of dynamic metadata that a gateway must accept from this configuration."""
        return self._running.assembly.pipeline.metadata_namespaces

    @property
    def has_tls_endpoints(self) -> bool:
        """Whether an endpoint uses HTTPS, including unresolved endpoints."""
        return self._running.has_tls_endpoints

    @property
    def tls_addresses(self) -> Sequence[str]:
        """IP addresses of HTTPS endpoints without a host name."""
        return sorted({endpoint.address for endpoint in self.store.endpoints if endpoint.tls and not endpoint.host})

    def limit_tls(self, *, by_name: bool, addresses: Collection[str]) -> None:
        """Use new HTTPS endpoints only if they have a host name (with `by_name`) or one of these addresses."""
        self._running.limit_tls(by_name=by_name, addresses=addresses)

    @property
    def plugins(self) -> Mapping[str, Plugin[Any]]:
        return self._running.assembly.instances.by_name

    @property
    def config(self) -> ConfigState:
        return ConfigState() if self._follower is None else self._follower.state

    def _config_in_effect(self) -> ConfigInEffect | None:
        text = self._running.assembly.loaded.text
        return None if self._follower is None else ConfigInEffect(text, self.config.generation)

    async def start(self) -> None:
        """Listen, fill the pool, collect metrics, then become ready; raises ConfigurationError.

        With leader election, the picker is ready only while it leads.
        """
        for warning in self._running.assembly.warnings:
            _log.warning("configuration", warning=str(warning))
        try:
            await self._open()
            self._start_tasks()
            await self._processes.catch_up()
        except BaseException:
            await self.stop(drain_seconds=0)
            raise
        self._settings.before_ready()
        self._is_started = True
        if self.link is not None:
            self.link.channel.send("started")  # the main process responds with the readiness
            return
        if self._kubernetes is not None:
            pods = IdleNodePods(self._kubernetes.cluster.api, lambda: self._running.assembly.plugins)
            self._supervisor.start("pods on idle nodes", pods.follow)
            self._kubernetes.write_events(lambda: self.config.refused)
            self._kubernetes.discovery.pool.subscribe(lambda _: self._update_health())
        if self._kubernetes is None or self._kubernetes.election is None:
            self._set_ready(ready=True)
            return
        self._extproc.stand_by()
        _log.info("standing by", endpoints=len(self.store.endpoints), **self.addresses)
        self._kubernetes.contend(lambda leads: self._set_ready(ready=leads))

    async def _open(self) -> None:
        await self._extproc.start()
        self._pages.open()
        if self._kubernetes is not None:
            await self._kubernetes.start(self.director, PATIENCE_SECONDS if self._running.source_states else None)
        await self._processes.open(self._extproc, self._handlers(), lambda: self._serves)
        for name, run in self._processes.tasks:
            self._supervisor.start(name, run)
        await self._running.start()

    def _handlers(self) -> Mapping[str, Handler]:
        """Return the handlers of messages from the main process, in a worker, or from workers, in the main process."""
        if self.link is not None:
            return {
                "ready": self._on_readiness,
                "refuse": lambda _: self.refuse_waiting(),
                "metrics": lambda _: packed_metrics(self.metrics.registry),
                "health": lambda _: self.operators.own_health(),
                "quota": lambda change: self.director.quotas.adjust(*change),
                "held": lambda _: held_requests(self.director),
                "counts": lambda _: endpoint_counts(self.store.snapshot(), self.metrics.scheduling.picks),
                "plugins": lambda _: plugin_states(self.plugins, lambda: self.store.latest),
            }
        keep = {} if self.recorder is None else {"decision": self.recorder.keep}
        return {"ask": self._running.ask, **keep}

    def _start_tasks(self) -> None:
        if self._follower is not None:
            self._supervisor.start("configuration", self._follow_config)
        if (policies := self._settings.policies) is not None:
            self._supervisor.start(
                "policies", lambda: policies.follow(lambda _: self.director.use_policies(policies.policies))
            )
        if self._lag is not None:
            self._supervisor.start("event loop lag", partial(self._lag.follow, self._settings.stall_seconds))
        if self.recorder is not None:
            self._supervisor.start("decision records", self.recorder.run)
        self._supervisor.start("shadow profiles", self._shadows.run)

    async def stop(self, *, drain_seconds: float | None = None, enough: asyncio.Event | None = None) -> None:
        """Drain, refuse queued requests, then close open streams and release resources.

        The drain ends after `drain_seconds`, by default the time in the settings, or when `enough` is set. The lease is
        released at the start of the drain, so that another replica is ready meanwhile.
        """
        self._is_stopping = True
        most_seconds = self._settings.drain_seconds if drain_seconds is None else drain_seconds
        releasing = None if self._kubernetes is None else self._kubernetes.resign()
        self._is_ready = False
        self._extproc.set_ready(ready=False)
        if most_seconds > 0:
            _log.info("draining", most_seconds=most_seconds)
            await self._extproc.drain(most_seconds, self._settings.drain_quiet_seconds, enough or asyncio.Event())
        await self.refuse_waiting()
        await self._extproc.stop()
        await self._processes.stop()
        if releasing is not None:
            await releasing
        await self._supervisor.stop()
        await self._running.stop()
        if self.recorder is not None:
            await self.recorder.close()
        self._readers.keep(())
        await self._readers.hubs.close_unused()
        if self._kubernetes is not None:
            await self._kubernetes.stop()
        if self._own_api is not None:
            await self._own_api.close()
        await self._pages.close()
        if self._settings.tracing is not None and self._settings.cluster is None:
            await asyncio.to_thread(self._settings.tracing.close)

    async def refuse_waiting(self) -> None:
        """Refuse queued and further requests, and wait briefly until gateways have read the responses."""
        await self._processes.refuse_waiting()
        await self._extproc.streams_ended(self.director.refuse_waiting())

    def _set_ready(self, *, ready: bool) -> None:
        if ready:
            self._running.take_over(self._settings.inherited_seconds)
        self._is_ready = ready
        self._update_health()
        if ready:
            inherited = self._running.inherited
            more = {"inherited_requests": inherited} if inherited else {}
            _log.info("ready", endpoints=len(self.store.endpoints), **more, **self.addresses)

    def _on_readiness(self, ready: bool) -> None:  # noqa: FBT001  a message
        if ready is not self._is_ready:
            self._set_ready(ready=ready)

    def _update_health(self) -> None:
        """Update the health service; it fails if the parsers do not match the pool, so that a rollout stops."""
        problem = self._protocol_problem if self._is_ready else ""
        if problem:
            _log.error("standing by", reason=problem)
            self._extproc.stand_by()
        else:
            self._extproc.set_ready(ready=self._is_ready)
        self._processes.send_ready(ready=self._serves)

    @property
    def _serves(self) -> bool:
        """Whether health checks succeed."""
        return self._is_ready and not self._protocol_problem

    @property
    def _protocol_problem(self) -> str:
        """Reason that the protocol of the pool does not match the parsers; empty if it does."""
        pool = None if self._kubernetes is None else self._kubernetes.discovery.found_pool
        if pool is None or pool.app_protocol == H2C:
            return ""
        parsers = [one.name for one in self._running.assembly.pipeline.parsers.parsers if one.needs_http2]
        return f"{', '.join(parsers)}: the appProtocol of the InferencePool must be {H2C}" if parsers else ""

    async def _follow_config(self) -> None:
        assert self._follower is not None  # noqa: S101  started only then
        async for assembly in self._follower.versions():
            try:
                await self._running.switch(assembly)
            except Exception as error:  # noqa: BLE001  a source of endpoints may raise any error
                self._follower.reject(error)
            else:
                self._use_shadows(assembly)
                self._follower.accept(assembly)
                self._update_health()

    def _use_shadows(self, assembly: Assembly) -> None:
        plugins = assembly.pipeline.of(Shadowing)
        self._shadows.use(assembly.pipeline.shadows, plugins[0].limits if plugins else None)

    def _build_next(self, loaded: LoadedConfig) -> Assembly:
        """Build the plugins of a new configuration; unchanged plugins keep their state."""
        assembly = self._build(loaded, self.plugins)
        self._running.discovery_of(assembly)
        return assembly

    def _build(self, loaded: LoadedConfig, previous: Mapping[str, Plugin[Any]]) -> Assembly:
        return assemble(loaded, self._builder(previous), observer=self._scheduling)

    def _builder(self, previous: Mapping[str, Plugin[Any]]) -> Builder:
        settings = self._settings
        return Builder(
            self._registry,
            self._clock,
            experimental=settings.experimental,
            previous=previous,
            object_paths=settings.object_paths,
            any_pool_object_paths=settings.any_pool_object_paths,
        )

    def _reviewing_api(self) -> KubeApi:
        """Return the API server for token reviews: that of the pool, or the default one; raises ConfigurationError."""
        if self._kubernetes is not None:
            return self._kubernetes.cluster.api
        try:
            self._own_api = api = KubeApi()
        except ConfigurationError as error:
            raise ConfigurationError(
                f"--metrics-endpoint-auth: {error}",
                remedy="run in a cluster or with a kubeconfig, or set --metrics-token-file",
            ) from error
        return api

    def _unready_reason(self) -> str:
        """Return the reason that the picker is not ready, in one sentence; empty if it is ready."""
        if self._is_ready:
            return self._protocol_problem
        if self._is_started:
            return "draining" if self._is_stopping else "standing by: another replica leads"
        awaited = self._running.awaited or ("" if self._kubernetes is None else self._kubernetes.awaited)
        return f"starting: {awaited}" if awaited else "starting"

    def _session(self, traits: GatewayTraits, claim: Claim, metadata: Mapping[str, str]) -> Session:
        self._processes.apply_batches()
        return Session(self.director, self._exchange, traits, claim, metadata)
