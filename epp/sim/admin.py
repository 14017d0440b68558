"""What a test asks of a simulated server: look loaded, stop looking loaded, tell what arrived."""

import msgspec
from aiohttp import web

from epp.sim.driver import Driver
from epp.sim.openai_api import ApiError
from epp.sim.records import Occupation, OccupationError
from epp.sim.request_log import RequestLog

__all__ = ["AdminHandlers"]


class _Load(msgspec.Struct, frozen=True):
    running: int
    waiting: int
    kv_usage: float


class AdminHandlers:
    """The handlers under `/sim/`."""

    def __init__(self, driver: Driver, log: RequestLog) -> None:
        self._driver = driver
        self._log = log

    async def occupy(self, request: web.Request) -> web.Response:
        """`POST /sim/occupy`: an `Occupation` as JSON, in place of the one before; answers the load there is then.

        400 when the body is no occupation, 409 when the machine has no room for it.
        """
        try:
            occupation = msgspec.json.decode(await request.read(), type=Occupation)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            fields = ", ".join(Occupation.__struct_fields__)
            raise ApiError(400, "BadRequestError", f"/sim/occupy takes JSON with {fields}: {error}") from error
        return self._occupy(occupation)

    async def release(self, request: web.Request) -> web.Response:  # noqa: ARG002 - the signature of a handler
        """`POST /sim/release`: end the synthetic load; answers the load there is then."""
        return self._occupy(Occupation())

    async def requests(self, request: web.Request) -> web.Response:  # noqa: ARG002 - the signature of a handler
        """`GET /sim/requests`: a JSON list of `RequestRecord`, oldest first."""
        return _json(self._log.records())

    def _occupy(self, occupation: Occupation) -> web.Response:
        try:
            self._driver.occupy(occupation)
        except OccupationError as error:
            raise ApiError(409, "ConflictError", str(error)) from error
        machine = self._driver.machine
        return _json(_Load(machine.running, machine.waiting, machine.kv_usage))


def _json(value: object) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), content_type="application/json")
