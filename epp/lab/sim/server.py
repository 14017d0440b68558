# SPDX-License-Identifier: Apache-2.0
"""The simulated server on a socket: routes, start and shutdown."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import msgspec
from aiohttp import web

from epp.framework.headers import REQUEST_ID
from epp.lab.sim.completions import CompletionHandlers, Driver
from epp.lab.sim.openai_api import ApiError
from epp.lab.sim.profile import SimProfile
from epp.lab.sim.work import Occupation, OccupationError
from epp.runtime.addresses import HostPort

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_MAX_BODY_BYTES = 64 * 2**20
_CLOSE_SECONDS = 2.0  # time for aborted answers to reach their clients
_METRICS_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class RunningSim:
    """A simulated server that listens at `host`:`port`."""

    def __init__(self, host: str, port: int, driver: Driver, completions: CompletionHandlers) -> None:
        self.host, self.port = host, port
        self.address = str(HostPort(host, port))
        self.machine = driver.machine
        """The simulated machine, for reading only."""
        self._driver = driver
        self._completions = completions

    async def idle(self) -> None:
        await self._driver.idle.wait()

    async def drain(self, timeout_seconds: float) -> None:
        """Refuse new requests and wait for those in flight; after the timeout, they end with reason `abort`."""
        self._completions.is_shutting_down = True
        try:
            async with asyncio.timeout(timeout_seconds):
                await self.idle()
        except TimeoutError:
            self._driver.abort_all()


@asynccontextmanager
async def running(
    profile: SimProfile, host: str = "127.0.0.1", port: int = 0, *, metrics: bool = True
) -> AsyncIterator[RunningSim]:
    """Run a simulated server until the block ends, which aborts requests in flight.

    Port 0 chooses any free port; without `metrics`, there is no metrics page. Raises OSError if the address cannot be
    bound.
    """
    driver = Driver(profile)
    completions = CompletionHandlers(driver)
    app = _application(driver, completions, metrics=metrics)
    # A client that disconnects cancels its handler, which frees its place in the machine.
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=_CLOSE_SECONDS)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        yield RunningSim(host, runner.addresses[0][1], driver, completions)
    finally:
        completions.is_shutting_down = True
        driver.abort_all()
        await runner.cleanup()
        driver.close()


def _application(driver: Driver, completions: CompletionHandlers, *, metrics: bool) -> web.Application:
    profile = driver.machine.profile
    models = _model_list(profile, created=int(time.time()))

    async def health(_: web.Request) -> web.Response:
        return web.Response()

    async def metrics_page(_: web.Request) -> web.Response:
        return web.Response(body=driver.metrics.page(), headers={"content-type": _METRICS_CONTENT_TYPE})

    async def list_models(_: web.Request) -> web.Response:
        return _json(models)

    async def occupy(request: web.Request) -> web.Response:
        return _occupy(driver, _decode_occupation(await request.read()))

    async def release(_: web.Request) -> web.Response:
        return _occupy(driver, Occupation())

    async def requests(_: web.Request) -> web.Response:
        return _json(list(completions.records))

    async def add_headers(request: web.Request, response: web.StreamResponse) -> None:
        response.headers["x-sim-server"] = profile.name
        if REQUEST_ID in request.headers:
            response.headers[REQUEST_ID] = request.headers[REQUEST_ID]

    app = web.Application(client_max_size=_MAX_BODY_BYTES, middlewares=[_errors_as_json])
    app.on_response_prepare.append(add_headers)
    app.router.add_post("/v1/chat/completions", completions.answer)
    app.router.add_post("/v1/completions", completions.answer)
    app.router.add_post("/v1/responses", completions.answer)
    app.router.add_get("/v1/models", list_models)
    app.router.add_get("/health", health)
    if metrics:
        app.router.add_get("/metrics", metrics_page)
    app.router.add_post("/sim/occupy", occupy)
    app.router.add_post("/sim/release", release)
    app.router.add_get("/sim/requests", requests)
    return app


@web.middleware
async def _errors_as_json(request: web.Request, handler: _Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except ApiError as error:
        return web.Response(status=error.status, body=error.body, content_type="application/json")


def _decode_occupation(body: bytes) -> Occupation:
    try:
        return msgspec.json.decode(body, type=Occupation)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        fields = ", ".join(Occupation.__struct_fields__)
        raise ApiError(400, "BadRequestError", f"/sim/occupy expects JSON with {fields}: {error}") from error


def _occupy(driver: Driver, occupation: Occupation) -> web.Response:
    try:
        driver.occupy(occupation)
    except OccupationError as error:
        raise ApiError(409, "ConflictError", str(error)) from error
    machine = driver.machine
    return _json({"running": machine.running, "waiting": machine.waiting, "kv_usage": machine.kv_usage})


def _json(value: object) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), content_type="application/json")


def _model_list(profile: SimProfile, *, created: int) -> dict[str, object]:
    """Return the body of `GET /v1/models`; the parent of an adapter is the base model."""
    cards = [
        {
            "id": name,
            "object": "model",
            "created": created,
            "owned_by": "vllm",
            "root": name,
            "parent": None if name == profile.model else profile.model,
            "max_model_len": profile.max_model_len if name == profile.model else None,
        }
        for name in profile.served_models
    ]
    return {"object": "list", "data": cards}
