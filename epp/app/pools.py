# SPDX-License-Identifier: Apache-2.0
"""Pickers of several InferencePools in one process: a listener for each, and one port for all metrics."""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any, NoReturn

import structlog
from aiohttp import web
from prometheus_client.registry import CollectorRegistry

from epp.admin.answers import AdminError, read_one
from epp.admin.port import routes_of_pools
from epp.app.pages import Pages, show_program
from epp.app.picker import Picker
from epp.app.settings import PickerSettings, of_pool
from epp.extproc.server import ExtProcServer
from epp.extproc.settings import Transport
from epp.framework import SystemClock
from epp.framework.endpoint import LabelSelector
from epp.framework.errors import ConfigurationError
from epp.framework.messages import described, quoted
from epp.kube.access import KubeApi
from epp.kube.cluster import Cluster
from epp.kube.objects.inference import POOL_GROUP, InferencePool, read_inference_pool
from epp.kube.readers import Hubs
from epp.kube.resources import pools
from epp.kube.watched import Watched
from epp.pool.collectors.polling.poller import SharedPages
from epp.runtime.addresses import parse_host_port
from epp.runtime.supervisor import Supervisor, first_of
from epp.telemetry.families import Families
from epp.telemetry.process_series import show_watches
from epp.telemetry.rendering import MetricsOfPools

MOST_POOLS = 100
_RETRY_SECONDS = 5.0

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolChoice:
    """Selection of InferencePools of a namespace, by names or by labels."""

    namespace: str
    names: frozenset[str] = frozenset()
    labels: LabelSelector | None = None
    group: str = POOL_GROUP
    kubeconfig: Path | None = None

    @property
    def selector(self) -> dict[str, str]:
        """Labels as a parameter of the Kubernetes API."""
        return {} if self.labels is None else {"labelSelector": str(self.labels)}

    def of(self, pools: Iterable[InferencePool]) -> list[InferencePool]:
        """Return the selected pools, oldest first, given the pools that match `selector`."""
        return sorted((pool for pool in pools if not self.names or pool.name in self.names), key=_age)


class _Member:
    """A selected pool, served or retried."""

    def __init__(self, name: str, port: int) -> None:
        self.name = name
        self.port = port
        self.picker: Picker | None = None
        """None while the pool is not served."""
        self.problem = ""
        """Reason that the pool is not served; empty while it is served or starting."""
        self.attempted = asyncio.Event()
        self.removed = asyncio.Event()
        """Set when the pool is removed or its port changes."""

    @property
    def health(self) -> Mapping[str, object]:
        if (picker := self.picker) is not None:
            return picker.operators.health()
        return {"ready": False, "reason": self.problem or "starting"}


class Pools:
    """Several pools in one process, between `start` and `stop`.

    A pool that cannot be served, because of its configuration or its port, is retried every five seconds; this does not
    affect other pools.
    """

    def __init__(
        self, settings: PickerSettings, choice: PoolChoice, settings_of: Callable[[str, int], PickerSettings]
    ) -> None:
        """Read the configuration of the API server; raises ConfigurationError.

        `settings` apply to the process: the ports for operators, and the port of pools that name none. `settings_of`
        returns the settings of a pool, given its name and port, or raises ConfigurationError; it is called in a thread.
        """
        self._settings = settings
        self._choice = choice
        self._settings_of = settings_of
        self._clock = SystemClock()
        self._supervisor = Supervisor()
        self._cluster = Cluster(KubeApi(choice.kubeconfig), clock=self._clock, supervisor=self._supervisor)
        self._hubs = Hubs(self._clock, self._supervisor, self._cluster)
        self._shared_pages = SharedPages(self._clock)
        self._found: Watched[InferencePool] | None = None
        self._members: dict[str, _Member] = {}
        self._left_out: tuple[str, ...] = ()
        """Names of pools beyond the limit."""
        self._serving: set[asyncio.Task[None]] = set()
        """A task for each pool, until its picker has stopped."""
        self._is_started = False
        self._is_stopping = False
        self._enough = asyncio.Event()
        registry = CollectorRegistry()
        families = Families(registry, legacy=settings.page.legacy_metrics)
        self._lag = show_program(families, settings, self._slowest_call)
        show_watches(registry, lambda: self._cluster.watches)
        self._routes: dict[str, web.UrlDispatcher] = {}
        """Admin routes of each served pool."""
        shown = MetricsOfPools(registry, lambda: {name: picker.metrics.registry for name, picker in self._pickers})
        self._pages = Pages(settings, registry, shown, self, lambda: self._cluster.api)
        server = replace(settings.server, address="", transport=Transport.ASYNCIO, secure=False)
        self._extproc = ExtProcServer(_no_session, server)

    async def start(self) -> None:
        """Listen, list the pools, and wait until each is served or has failed; raises ConfigurationError."""
        choice = self._choice
        try:
            await self._extproc.start()
            self._pages.open()
            self._supervisor.start("event loop lag", partial(self._lag.follow, self._settings.stall_seconds))
            self._found = found = self._cluster.watch(
                pools(choice.group), read_inference_pool, namespace=choice.namespace, selector=choice.selector
            )
            await found.first_list()
            self._update()
            found.subscribe(lambda _: self._update())
            await asyncio.gather(*(member.attempted.wait() for member in self._members.values()))
        except BaseException:
            await self.stop()
            raise
        self._settings.before_ready()
        self._is_started = True
        self._update_health()
        _log.info("ready", pools=sorted(self._members), **self._extproc.addresses, **self._pages.addresses)

    async def stop(self, *, enough: asyncio.Event | None = None) -> None:
        """Drain all pools concurrently, at most until `enough` is set, and release all resources."""
        self._is_stopping = True
        if enough is not None:
            self._supervisor.start("drain", partial(_forward, enough, self._enough))
        self._extproc.set_ready(ready=False)
        for member in self._members.values():
            member.removed.set()
        await asyncio.gather(*self._serving, return_exceptions=True)
        await self._extproc.stop()
        await self._supervisor.stop()
        await self._cluster.close()
        await self._pages.close()
        if self._settings.tracing is not None:
            await asyncio.to_thread(self._settings.tracing.close)

    def _update(self) -> None:
        """Serve exactly the selected pools."""
        if self._found is None or self._is_stopping:
            return
        chosen = self._choice.of(self._found.objects.values())
        self._left_out = tuple(pool.name for pool in chosen[MOST_POOLS:])
        default = parse_host_port(self._settings.server.address, min_port=0).port
        wanted = {pool.name: pool.picker_port or default for pool in chosen[:MOST_POOLS]}
        for name, member in tuple(self._members.items()):
            if wanted.get(name) != member.port:
                _log.info("pool removed" if name not in wanted else "pool port changed", pool=name)
                member.removed.set()
                del self._members[name]
        for name, port in wanted.items():
            if name not in self._members:
                member = self._members[name] = _Member(name, port)
                task = asyncio.create_task(self._serve(member), name=f"pool {name}")
                self._serving.add(task)
                task.add_done_callback(self._serving.discard)

    async def _serve(self, member: _Member) -> None:
        """Serve a pool until it is removed; retry after failures."""
        structlog.contextvars.bind_contextvars(pool=member.name)  # for the log lines of this task and its subtasks
        while not member.removed.is_set():
            try:
                if await self._run(member):
                    break
                problem = ""
            except ConfigurationError as error:
                problem = str(error)
            except Exception as error:  # noqa: BLE001  such as a plugin error, which must not affect other pools
                problem = described(error)
                if problem != member.problem:
                    _log.exception("pool failed")
            if problem != member.problem:
                _log.error("pool not served", reason=problem, retry_seconds=_RETRY_SECONDS)
            member.problem = problem
            member.attempted.set()
            await first_of(member.removed.wait(), most_seconds=_RETRY_SECONDS)
        member.attempted.set()

    async def _run(self, member: _Member) -> bool:
        """Run the picker of a pool until the pool is removed; raises ConfigurationError."""
        first = next((each for each in self._members.values() if each.port == member.port), member)
        if first is not member and member.port:
            raise ConfigurationError(
                f"port {member.port} is used by InferencePool {first.name}: write a different number for each "
                "InferencePool in spec.endpointPickerRef.port, and map it to this port of the picker in the Service"
            )
        settings = await asyncio.to_thread(self._settings_of, member.name, member.port)
        picker = await asyncio.to_thread(Picker, of_pool(settings, self._cluster, self._hubs, self._shared_pages))
        if not await first_of(picker.start(), member.removed.wait()):
            return True
        try:
            routes = web.UrlDispatcher()
            routes.add_routes(picker.operators.admin_routes())
            self._routes[member.name] = routes  # complete, because the thread of the admin port reads it
            member.picker, member.problem = picker, ""
            member.attempted.set()
            self._update_health()
            await member.removed.wait()
        finally:
            member.picker = None
            self._routes.pop(member.name, None)
            self._update_health()
            await picker.stop(enough=self._enough)
        return True

    def _update_health(self) -> None:
        self._extproc.set_ready(ready=self._is_started and not self._is_stopping and self._serves)

    @property
    def _serves(self) -> bool:
        """Whether a pool is served, or no pool is selected."""
        return any(member.picker for member in self._members.values()) or not (self._members or self._missing)

    @property
    def _missing(self) -> Sequence[str]:
        """Selected names without an InferencePool."""
        return sorted(self._choice.names - self._members.keys())

    def health(self) -> Mapping[str, object]:
        """Return the content of `/healthz`; thread-safe."""
        states = {name: dict(member.health) for name, member in sorted(self._members.items())}
        for name in self._missing:
            states[name] = {"ready": False, "reason": f"there is no InferencePool {self._choice.namespace}/{name}"}
        for name in self._left_out:
            states[name] = {"ready": False, "reason": f"one process serves at most {MOST_POOLS} pools"}
        serves = not states or any(state.get("ready") for state in states.values())
        ready = self._is_started and not self._is_stopping and serves
        found = self._found
        return {
            "ready": ready,
            **({} if ready else {"reason": self._unready_reason()}),
            "pools": states,
            "kubernetes": {
                "server": self._cluster.api.server,
                "state": "not read yet" if found is None else f"{found.state}{found.reason and ': '}{found.reason}",
            },
            "failing_tasks": dict(self._supervisor.failing),
            "lost_log_lines": self._settings.lost_log_lines(),
        }

    def _unready_reason(self) -> str:
        if self._is_stopping:
            return "draining"
        if self._is_started:
            return "no pool is served"
        waiting = [member.name for member in tuple(self._members.values()) if not member.attempted.is_set()]
        return f"starting: {', '.join(waiting)}" if waiting else "starting: InferencePools are not listed yet"

    @property
    def _pickers(self) -> Iterator[tuple[str, Picker]]:
        for name, member in sorted(self._members.items()):
            if (picker := member.picker) is not None:
                yield name, picker

    def _slowest_call(self) -> tuple[float, str]:
        """Return seconds and plugin of the longest call of all pools since the last call of this function."""
        return max((picker.metrics.slowest_call() for _, picker in self._pickers), default=(0.0, ""))

    def cluster_scores(self, local: str) -> Mapping[str, object]:
        """Return the free capacity of each cluster for all pools; thread-safe."""
        lists: list[Mapping[str, Any]] = [picker.operators.cluster_scores(local) for _, picker in self._pickers]
        return {**(lists[0] if lists else {}), "items": [item for each in lists for item in each["items"]]}

    async def plugin_states(self, request: web.Request) -> Mapping[str, object]:
        """Return the plugin states of the pool in the request; raises AdminError for an unknown pool."""
        name, pickers = read_one(request, "pool"), dict(self._pickers)
        if name not in pickers:
            known = f"write one of {', '.join(pickers)}" if pickers else "see /healthz"
            problem = f"no pool {quoted(name)} is served here" if name else "pool is missing"
            raise AdminError(HTTPStatus.NOT_FOUND, "NotFound", f"{problem}: {known}")
        return {"pool": name, **await pickers[name].operators.plugin_states(request)}

    def explanations(self) -> Mapping[str, object]:
        """Return explanations of the decisions of placements of all pools, by name; thread-safe."""
        return {name: each for _, picker in self._pickers for name, each in picker.operators.explanations().items()}

    def admin_routes(self) -> Sequence[web.RouteDef]:
        """Return the routes of the admin port: those of all pools, including later ones."""
        return routes_of_pools(self._routes)


async def _forward(event: asyncio.Event, other: asyncio.Event) -> None:
    await event.wait()
    other.set()


def _age(pool: InferencePool) -> tuple[bool, float, str]:
    created = pool.metadata.created
    return created is None, 0.0 if created is None else created.timestamp(), pool.name


def _no_session(*_: object) -> NoReturn:
    raise AssertionError("the process accepts no ext_proc connections: each pool has its own server")
