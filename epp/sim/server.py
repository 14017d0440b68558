"""The simulated server on a socket: its routes, its start and its end."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import msgspec
import structlog
from aiohttp import web

from epp.framework.headers import REQUEST_ID
from epp.sim.admin import AdminHandlers
from epp.sim.completions import CompletionHandlers
from epp.sim.driver import Driver
from epp.sim.machine import Machine
from epp.sim.metrics_page import MetricsPage
from epp.sim.openai_api import ApiError, ModelCard, ModelList
from epp.sim.profile import SimProfile
from epp.sim.request_log import RequestLog

__all__ = ["RunningSim", "running", "serve"]

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_log = structlog.get_logger()

_MAX_BODY_BYTES = 64 * 2**20
_CLOSE_SECONDS = 2.0  # for answers that are ended to reach clients that still read
_METRICS_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class RunningSim:
    """A simulated server that listens at `host`:`port`."""

    def __init__(self, host: str, port: int, driver: Driver, completions: CompletionHandlers) -> None:
        self.host = host
        self.port = port
        self._driver = driver
        self._completions = completions

    @property
    def address(self) -> str:
        """The address as `host:port`, an IPv6 host in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def machine(self) -> Machine:
        """The machine behind the server, to be read only."""
        return self._driver.machine

    async def idle(self) -> None:
        """Wait until no request is in flight."""
        await self._driver.idle()

    async def drain(self, timeout_seconds: float) -> None:
        """Refuse new requests and let those in flight finish; after the timeout they end with reason `abort`."""
        self._completions.refuse_new()
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._driver.idle()
        except TimeoutError:
            self._driver.abort_all()


@asynccontextmanager
async def running(profile: SimProfile, host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[RunningSim]:
    """Run a simulated server while the context lasts; requests still in flight at its end are aborted.

    Port 0 takes any free port. `OSError` when the address cannot be bound.
    """
    driver = Driver(lambda now: Machine(profile, now=now))
    log = RequestLog()
    completions = CompletionHandlers(driver, log)
    app = _application(driver, completions, AdminHandlers(driver, log))
    # Cancelled handlers are how a client that goes away frees its place.
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=_CLOSE_SECONDS)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        sim = RunningSim(host, runner.addresses[0][1], driver, completions)
        yield sim
    finally:
        completions.refuse_new()
        driver.abort_all()
        await runner.cleanup()
        driver.close()


async def serve(
    profile: SimProfile,
    host: str,
    port: int,
    *,
    ready: Callable[[str, int], None] | None = None,
    stop: asyncio.Event,
    shutdown_timeout_seconds: float = 30.0,
) -> None:
    """Run a simulated server until `stop` is set, then let requests in flight finish until the timeout.

    `ready` is called once with the host and the port it listens on. Raises what `running` raises.
    """
    async with running(profile, host, port) as sim:
        _log.info("simulated server listening", name=profile.name, address=sim.address, model=profile.model)
        if ready is not None:
            ready(sim.host, sim.port)
        await stop.wait()
        _log.info("simulated server stopping", name=profile.name, in_flight=sim.machine.running + sim.machine.waiting)
        await sim.drain(shutdown_timeout_seconds)


def _application(driver: Driver, completions: CompletionHandlers, admin: AdminHandlers) -> web.Application:
    profile = driver.machine.profile
    unix_offset_seconds = time.time() - driver.machine.now
    page = MetricsPage(driver.machine, unix_offset_seconds=unix_offset_seconds)
    models = msgspec.json.encode(_model_list(profile, created=int(time.time())))

    async def health(_: web.Request) -> web.Response:
        return web.Response()

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=page.render(), headers={"content-type": _METRICS_CONTENT_TYPE})

    async def list_models(_: web.Request) -> web.Response:
        return web.Response(body=models, content_type="application/json")

    async def sign(request: web.Request, response: web.StreamResponse) -> None:
        response.headers["x-sim-server"] = profile.name
        if REQUEST_ID in request.headers:
            response.headers[REQUEST_ID] = request.headers[REQUEST_ID]

    app = web.Application(client_max_size=_MAX_BODY_BYTES, middlewares=[_errors_as_json])
    app.on_response_prepare.append(sign)
    app.router.add_post("/v1/chat/completions", completions.chat)
    app.router.add_post("/v1/completions", completions.complete)
    app.router.add_get("/v1/models", list_models)
    app.router.add_get("/health", health)
    app.router.add_get("/metrics", metrics)
    app.router.add_post("/sim/occupy", admin.occupy)
    app.router.add_post("/sim/release", admin.release)
    app.router.add_get("/sim/requests", admin.requests)
    return app


@web.middleware
async def _errors_as_json(request: web.Request, handler: _Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except ApiError as error:
        body = msgspec.json.encode(error.body)
        return web.Response(status=error.status, body=body, content_type="application/json")


def _model_list(profile: SimProfile, *, created: int) -> ModelList:
    base = ModelCard(
        id=profile.model, created=created, root=profile.model, parent=None, max_model_len=profile.max_model_len
    )
    adapters = [
        ModelCard(id=name, created=created, root=name, parent=profile.model, max_model_len=None)
        for name in profile.lora_adapters
    ]
    return ModelList(data=[base, *adapters])
