# SPDX-License-Identifier: Apache-2.0
"""A model server whose answers are streams that go on, end or break when the test says so, and a gateway before it."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import msgspec
from aiohttp import web

from epp.app import PickerSettings
from epp.config import load_file, load_text
from epp.extproc.settings import BudgetSettings, ResponseSettings, ResponseUsage, ServerSettings
from epp.framework.snapshot import FAILED, IN_FLIGHT, IN_FLIGHT_TOKENS, SERVED
from epp.lab.gateway.local import LocalGateway, local_gateway
from epp.lab.gateway.settings import GatewaySettings
from epp.pool.discovery import StaticDiscovery, parse_targets
from epp.routing.director import Cause, DirectorObserver, Refusal, Routing
from epp.runtime.supervisor import first_of
from tests.support.echo import CONFIG
from tests.support.listening import listening
from tests.support.waiting import until

PIECE = b'data: {"model":"m","choices":[{"text":"word "}]}\n\n'
USAGE = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
LAST = b'data: {"model":"m","choices":[],"usage":' + json.dumps(USAGE).encode() + b"}\n\ndata: [DONE]\n\n"
RATES = CONFIG.replace("{type: queue-scorer}]", "{type: endpoint-rates-producer}, {type: queue-scorer}]")
"""One whose plugin times streams."""
REPORTS = CONFIG.replace(
    "{type: queue-scorer}]",
    "{type: request-attribute-reporter, parameters: "
    "{attributes: [{key: {name: tokens}, expression: usage.completion_tokens}]}}, {type: queue-scorer}]",
)
"""One whose plugin reads all responses."""


@dataclass
class Stepwise:
    """A stream's first piece is sent at once, and each further one that is asked for once one is `taken`.

    Then it waits for `finish` or `break_off`.
    """

    address: str = ""
    models: list[str] = field(default_factory=list)
    """The models that were asked for."""
    gone: int = 0
    """Clients that left a stream."""
    taken: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))
    finish: asyncio.Event = field(default_factory=asyncio.Event)
    break_off: asyncio.Event = field(default_factory=asyncio.Event)

    def forget(self) -> None:
        """Begin again."""
        vars(self).update(vars(Stepwise(self.address)))

    async def answer(self, request: web.Request) -> web.StreamResponse:
        asked = await request.json()
        self.models.append(asked["model"])
        if status := asked.get("fail"):
            return web.json_response({"error": {"message": "told so"}}, status=status)
        if asked.get("silent"):
            await self._told()
        if asked.get("hang_up"):
            assert request.transport is not None
            request.transport.abort()
        if not asked.get("stream"):
            return web.json_response({"model": asked["model"], "choices": [{"text": "word"}], "usage": USAGE})
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        model = json.dumps(asked["model"]).encode()
        try:
            for number in range(asked.get("pieces", 1)):
                if number:
                    await self.taken.acquire()
                await response.write(PIECE.replace(b'"m"', model))
            await self._told()
        except asyncio.CancelledError:
            self.gone += 1
            raise
        if self.break_off.is_set():
            assert request.transport is not None
            request.transport.abort()
        else:
            await response.write(LAST.replace(b'"m"', model))
        return response

    async def _told(self) -> None:
        await first_of(self.finish.wait(), self.break_off.wait())


class Endings(DirectorObserver):
    def __init__(self) -> None:
        self.completed_as: list[tuple[Cause, int]] = []
        self.routings: list[Routing] = []
        self.refusals: list[Refusal] = []

    def completed(self, routing: Routing, cause: Cause) -> None:
        self.completed_as.append((cause, routing.status))
        self.routings.append(routing)

    def refused(self, refusal: Refusal) -> None:
        self.refusals.append(refusal)


@dataclass
class Setup:
    server: Stepwise
    gateway: LocalGateway
    endings: Endings
    http: aiohttp.ClientSession
    admin: str
    shows_headers_alone: bool
    """Whether Envoy shows the picker no body of a response that no plugin needs."""
    _before: tuple[int, int] = (0, 0)

    @property
    def url(self) -> str:
        return f"{self.gateway.url}/v1/completions"

    @property
    def in_flight(self) -> tuple[int, int]:
        """Requests and prompt tokens."""
        snapshot = self.gateway.picker.store.snapshot()
        return int(snapshot.column(IN_FLIGHT)[0]), int(snapshot.column(IN_FLIGHT_TOKENS)[0])

    @property
    def served_and_failed(self) -> tuple[int, int]:
        served, failed = self._counted
        return served - self._before[0], failed - self._before[1]

    @property
    def _counted(self) -> tuple[int, int]:
        snapshot = self.gateway.picker.store.snapshot()
        return int(snapshot.column(SERVED)[0]), int(snapshot.column(FAILED)[0])

    def forget(self) -> None:
        """Count from here on, and let the server begin again."""
        self._before = self._counted
        self.server.forget()
        vars(self.endings).update(vars(Endings()))

    def asking(self, headers: dict[str, str] | None = None, **more):
        """The context of one request and its response."""
        body = {"model": "m", "prompt": "p" * 400, **more}
        return self.http.post(self.url, json=body, headers=headers)

    async def ask(self, headers: dict[str, str] | None = None, **more) -> tuple[int, bytes]:
        """Return status and body, once the books are closed."""
        async with self.asking(headers, **more) as response:
            answer = response.status, await response.read()
        await self.settled()
        return answer

    async def settled(self) -> None:
        await until(lambda: self.in_flight == (0, 0), "nothing is in flight")

    async def messages(self) -> tuple[int, int]:
        """Number of messages that Envoy has sent to the picker, and of those it has received."""
        async with (
            aiohttp.ClientSession("http://envoy", connector=aiohttp.UnixConnector(self.admin)) as admin,
            admin.get("/stats", params={"format": "json", "filter": "ext_proc.stream_msgs_(sent|received)$"}) as page,
        ):
            stats = (await page.json())["stats"]
        counts = {stat["name"].rpartition("_")[2]: stat["value"] for stat in stats if "value" in stat}
        return counts["sent"], counts["received"]


@contextlib.asynccontextmanager
async def stepwise(
    directory: str,
    settings: GatewaySettings,
    *,
    usage: ResponseUsage = ResponseUsage.AUTO,
    config: str = CONFIG,
    config_file: Path | None = None,
    **picker,
) -> AsyncIterator[Setup]:
    server = Stepwise()
    async with listening(server.answer) as server.address:
        endings = Endings()
        admin = f"{directory}/admin.sock"
        picker_settings = PickerSettings(
            server=ServerSettings(budgets=BudgetSettings(max_body_bytes=settings.max_body_bytes)),
            config=load_text(config) if config_file is None else load_file(config_file),
            watch_config=config_file,
            discovery=StaticDiscovery(parse_targets(server.address)),
            observers=(endings,),
            responses=ResponseSettings(response_usage=usage),
            **picker,
        )
        envoy = msgspec.structs.replace(settings, listen_port=0, admin_address=f"unix:{admin}")
        async with local_gateway(picker_settings, envoy) as gateway, aiohttp.ClientSession() as http:
            mode = settings.processing_mode["response_body_mode"]
            shown = mode == "STREAMED" and usage is ResponseUsage.NEVER
            hidden = mode == "NONE" and usage is not ResponseUsage.ALWAYS
            yield Setup(server, gateway, endings, http, admin, shows_headers_alone=shown or hidden)
