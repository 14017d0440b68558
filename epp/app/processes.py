# SPDX-License-Identifier: Apache-2.0
"""Communication of a picker with its worker processes and with other pickers of the pool."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from functools import partial
from secrets import randbits, token_hex
from typing import Any

import structlog
from prometheus_client.registry import CollectorRegistry

from epp.admission.quotas import WhenAlone
from epp.app.settings import PickerSettings
from epp.config.assemble import Assembly
from epp.extproc.server import ExtProcServer
from epp.framework.clock import Clock
from epp.framework.errors import ConfigurationError
from epp.framework.quotas import Quota
from epp.framework.sharing import Shareable
from epp.routing.datastore import Datastore, SharedWork
from epp.routing.director import Director
from epp.routing.outliers.outlier_detector import SharedFailures
from epp.runtime.followed_files import RELOADS
from epp.sharing.channel import Channel, Handler
from epp.sharing.connections import ConnectionReceiver, Connections
from epp.sharing.exchange import Exchange
from epp.sharing.healthz import Processes as Counts
from epp.sharing.healthz import WorkersHealth, ask
from epp.sharing.link import ConfigInEffect, Link
from epp.sharing.local import Publisher, Reader, Relay
from epp.sharing.metrics import MergedMetrics, show_processes
from epp.sharing.processes import Workers
from epp.sharing.rings import Rings, shared_memory
from epp.sharing.stream import SharedStream

_ALL_WORKERS_SECONDS, _FIRST_WORKER_SECONDS = 20.0, 40.0
"""Longest wait for the start of all workers, and the further wait for the first one."""
_CATCH_UP_SECONDS = 2.0
"""Longest wait for the state of other pickers before this one is ready."""
_REFUSE_SECONDS = 3.0
_HEALTH_SECONDS = 1.0

_log = structlog.get_logger()


class Processes:
    """Connections to the other processes of this picker, and to other pickers; none for a single process."""

    def __init__(
        self,
        settings: PickerSettings,
        director: Director,
        store: Datastore,
        assembly: Callable[[], Assembly],
        clock: Clock,
        *,
        config: Callable[[], ConfigInEffect | None],
    ) -> None:
        """Prepare; `config` returns the configuration for workers.

        Raises ConfigurationError for unusable settings of shared state.
        """
        self.link = settings.link
        """Connection to the main process; None in the main process."""
        self.stream: SharedStream | None = None
        """Connection to other pickers; None without --shared-state."""
        self.workers: Workers | None = None
        """Workers of the main process; None before `open`."""
        self.acceptor: Connections | None = None
        """Accepts connections in the main process, for its workers."""
        self._health = WorkersHealth(lambda: self.counts)
        self._metrics: MergedMetrics | None = None
        self._config = config
        self._settings = settings
        self._quotas = director.quotas
        self._store = store
        self._publisher: Publisher | None = None
        self._relay: Relay | None = None
        self._reader: Reader | None = None
        self._memory: int | None = None
        self._receiver: ConnectionReceiver | None = None
        has_workers = settings.workers > 1
        if not (settings.sharing.address or has_workers or self.link):
            return
        name = token_hex(8)
        own = (
            SharedWork(store, sends=not has_workers),
            SharedFailures(director.outliers, store),
            director.quotas.share(name, WhenAlone(settings.sharing.quotas_when_alone)),
        )
        self._exchange = Exchange(
            name, _shareables(own, assembly), store.snapshot, clock, randbits(64), defers=has_workers
        )
        if settings.sharing.address and self.link is None:
            try:
                self.stream = SharedStream(self._exchange, settings.sharing, settings.pool_name, clock)
            except ValueError as error:
                raise ConfigurationError(str(error)) from error
        if self.link is not None:
            rings = self.link.rings
            self._publisher = Publisher(self._exchange, lambda batch: rings.write(batch, clock.now()))
            self._reader = Reader(rings, lambda timed: self._exchange.apply(timed.data, clock.now() - timed.at), clock)
        elif has_workers:
            self._memory = shared_memory(settings.workers + 1)
            rings = Rings(self._memory, 0)
            self._relay = Relay(self._exchange, clock, rings, self.stream)
            self._publisher = Publisher(self._exchange, self._relay.from_main)
            self._reader = Reader(rings, self._relay.from_member, clock)
            self.acceptor = Connections(self._release, clock.now)
        wakes = self._publisher or self.stream
        if wakes is not None:
            store.ledger.on_open = wakes.wakes.set

    @property
    def counts(self) -> Counts:
        """Number of workers by state; thread-safe."""
        return Counts() if self.workers is None else self.workers.counts

    def health(self, own: Mapping[str, object]) -> Mapping[str, object]:
        """Return the combined health of this process and its workers; thread-safe."""
        return own if self.workers is None else self._health.with_workers(own)

    def page_of(self, own: CollectorRegistry) -> CollectorRegistry:
        """Return the metrics of all processes, given the metrics of this one."""
        if self._relay is None:
            return own
        show_processes(own, lambda: self.counts)
        self._metrics = MergedMetrics(own)
        return self._metrics

    def apply_batches(self) -> None:
        """Apply new batches of other processes, in a worker; called before each request."""
        if self.link is not None and self._reader is not None:
            self._reader.poll()

    async def complete(self) -> None:
        """Apply batches that the main process needs only for simulations and plugin states."""
        if self._relay is not None:
            await self._relay.complete()

    async def responses(self, kind: str, most_seconds: float) -> Mapping[Channel, Any]:
        """Return the responses of workers to a call, None for each late response."""
        return await ask(self._channels(), kind, most_seconds)

    async def open(self, server: ExtProcServer, handlers: Mapping[str, Handler], is_ready: Callable[[], bool]) -> None:
        """Start workers, or connect to the main process; `handlers` process the messages of the other side."""
        if self._relay is not None and self.acceptor and self._memory is not None:
            report = self.acceptor.report

            def greeting() -> Iterator[tuple[str, object]]:
                yield "ready", is_ready()
                for change in self._quotas.set_quotas.items():
                    yield "quota", change

            self.workers = Workers(
                self._settings.workers,
                self._store,
                self._relay,
                self.acceptor,
                self._memory,
                handlers=lambda worker: {"connections": partial(report, worker.number), **handlers},
                greeting=greeting,
                config=self._config,
            )
            self.workers.start()
            if self._metrics is not None:
                self._metrics.follow(self._channels)
        elif self.link is not None:
            self._receiver = receiver = ConnectionReceiver(
                server.http2, self.link.connections, partial(self.link.send, "connections")
            )
            of_main: Mapping[str, Handler] = {
                "salt": self._exchange.use_salt,
                "lost": lambda is_lost: self._exchange.connection(is_lost=is_lost),
                "release": receiver.release,
                "reload": lambda _: RELOADS.request(),
                **handlers,
            }
            self.link.attach(self._store, of_main)
            await self.link.open(self._exchange.picker)

    @property
    def tasks(self) -> Iterator[tuple[str, Callable[[], Awaitable[None]]]]:
        """Background tasks by name."""
        if self.link is not None:
            yield "main process", self.link.run
        if self._receiver is not None:
            yield "connections", self._receiver.run
        if self.workers is not None:
            yield "reloads of workers", partial(_forward_reloads, self.workers)
            yield "health of workers", partial(_refresh_health, self._health, self.workers)
        if self._publisher is not None and self._reader is not None:
            yield "shared state of workers", self._publisher.run
            yield "shared state of other workers", partial(_read, self._reader, self.link)
        if self.stream is not None:
            yield "shared state", self.stream.run

    async def catch_up(self) -> None:
        """Wait for workers and for the state of other pickers; raises ConfigurationError if no worker starts."""
        if self.stream is not None:
            self.stream.begins.set()
        if self.stream is not None and not await self.stream.caught_up(_CATCH_UP_SECONDS):
            _log.warning("starting before the state of other pickers was read completely", server=self.stream.name)
        if self.link is not None and self._reader is not None:
            await self._reader.caught_up.wait()
        if self.workers is not None and not await self.workers.started(
            all_seconds=_ALL_WORKERS_SECONDS, first_seconds=_FIRST_WORKER_SECONDS
        ):
            raise ConfigurationError("--workers: no worker has started: see their log lines")

    def send_ready(self, *, ready: bool) -> None:
        """Send workers the result of health checks."""
        if self.workers is not None:
            self.workers.send("ready", ready)

    def send_quota(self, tenant: str, quota: Quota | None) -> None:
        """Send workers a quota that was set on the admin port; None if it was removed."""
        if self.workers is not None:
            self.workers.send("quota", (tenant, quota))

    async def refuse_waiting(self) -> None:
        """Refuse the queued requests of workers."""
        if self._relay is not None:
            await ask(self._channels(), "refuse", _REFUSE_SECONDS)

    async def stop(self) -> None:
        if self.workers is not None:
            await self.workers.stop()
        if self._memory is not None:
            os.close(self._memory)
            self._memory = None

    def _channels(self) -> Iterable[Channel]:
        return () if self.workers is None else self.workers.channels.values()

    def _release(self, worker: int, rate: float) -> None:
        if self.workers is not None:
            self.workers.send_to(worker, "release", rate)


def _shareables(own: tuple[Shareable, ...], assembly: Callable[[], Assembly]) -> Callable[[], tuple[Shareable, ...]]:
    """Return a function that returns `own` and the plugins of the current configuration that share their state."""
    known: Assembly | None = None
    found = own

    def current() -> tuple[Shareable, ...]:
        nonlocal known, found
        if (in_effect := assembly()) is not known:
            known = in_effect
            found = (*own, *(plugin for plugin in in_effect.plugins if isinstance(plugin, Shareable)))
        return found

    return current


async def _read(reader: Reader, link: Link | None) -> None:
    """Read the state that other processes share; a worker waits for its endpoints first."""
    if link is not None:
        await link.filled.wait()
    await reader.run()


async def _forward_reloads(workers: Workers) -> None:
    """Forward reload requests to workers."""
    async for _ in RELOADS.each():
        workers.send("reload")


async def _refresh_health(health: WorkersHealth, workers: Workers) -> None:
    while True:
        await health.refresh(workers.channels)
        await asyncio.sleep(_HEALTH_SECONDS)
