# SPDX-License-Identifier: Apache-2.0
"""Decisions on the admin port: records of the latest ones, and where a request would go, without sending it."""

import asyncio
import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from http import HTTPStatus
from secrets import randbits
from typing import Any

import msgspec
from aiohttp import web
from msgspec import UNSET, Raw, UnsetType

from epp.admin.answers import (
    AdminError,
    BadAdminRequestError,
    LoopCalls,
    PickerView,
    as_json,
    read_as,
    read_number,
    read_object,
    read_one,
)
from epp.config import Assembly
from epp.explain.building import error_of, simulated_record
from epp.explain.made_up_pool import MOST_CHANGES, EndpointChange, UnknownEndpointError, made_up
from epp.explain.recorder import Recorder
from epp.framework.candidates import Subset
from epp.framework.errors import ConfigurationError, RequestError
from epp.framework.headers import METHOD, OBJECTIVE, PATHS
from epp.framework.messages import quoted
from epp.framework.plugin import Parameters
from epp.framework.request import Headers
from epp.routing.director import Simulated, Simulation
from epp.routing.director.incoming_request import DEFAULT_PATH

PATH = "/api/simulate-schedule"
MOST_BYTES = 1024 * 1024
"""Of a request with its prompt."""
DECISIONS_PATH = "/api/decisions"
_SHOWN = 50
_MOST_SHOWN = 1000
_MOST_RECORD_BYTES = 2 * 1024 * 1024
"""Of records in an answer: to copy more would hold up requests."""
_MOST_CONFIGS = 4
_SEED = re.compile(r"[0-9a-fA-F]{1,16}")
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


class _Ask(Parameters, frozen=True, kw_only=True):
    """A request as a client would send it, and the changes to pool and configuration."""

    headers: dict[str, str | list[str]] = msgspec.field(default_factory=dict)
    method: str = "POST"
    path: str = DEFAULT_PATH
    body: Any = None
    """Body of the request: text, or a value that is sent as JSON."""
    candidate_subset: list[str] | None = None
    """Addresses among which the gateway allows to pick; null for all."""
    objective: str = ""
    """Name of an InferenceObjective, as its header has it."""
    pool: str = ""
    """Name of the pool; empty for the one that there is."""
    seed: str = ""
    """Of random draws, in hexadecimal digits, as records have it; empty for any."""
    config: str | dict[str, Any] | UnsetType = UNSET
    """Another configuration: its text, or the document itself."""
    endpoints: dict[str, EndpointChange] = msgspec.field(default_factory=dict)
    """Endpoints with other values, by name or address."""
    victims: list[str] = msgspec.field(default_factory=list)
    """Ids of requests in flight that are taken as ended."""

    @property
    def bytes(self) -> bytes:
        """The body of the request."""
        if self.body is None:
            return b""
        try:
            return self.body.encode() if isinstance(self.body, str) else msgspec.json.encode(self.body)
        except (UnicodeEncodeError, TypeError) as error:
            raise BadAdminRequestError(f"body: it is not what JSON can have: {error}") from error

    @property
    def fields(self) -> Headers:
        """The headers of the request."""
        found = [(METHOD, self.method), (PATHS[0], self.path)]
        if self.objective:
            found.append((OBJECTIVE[0], self.objective))  # before another one in the headers
        for name, values in self.headers.items():
            if not _HEADER.fullmatch(name):
                raise BadAdminRequestError(
                    f"headers: {quoted(name)} is no name of a header: write letters, digits and hyphens (method and "
                    "path are keys of their own)"
                )
            found += [(name, value) for value in ([values] if isinstance(values, str) else values)]
        return Headers(found)


def simulation_routes(picker: PickerView) -> tuple[web.RouteDef, ...]:
    """Return the route."""
    configs = Configs(picker)

    async def simulate(request: web.Request) -> web.Response:
        """Answer with the record of a request that is only tried, and with its error where it is not routed."""
        ask = await read_ask(request, picker.pool)
        config = None if isinstance(ask.config, UnsetType) else await configs.of(ask.config)
        seed = int(ask.seed, 16) if ask.seed else randbits(64)
        simulation, found = await picker.call(lambda: _simulated(picker, ask, config, seed))
        return await picker.call(lambda: _answer(picker, simulation, found, config))

    return (web.post(PATH, simulate),)


def _simulated(picker: PickerView, ask: _Ask, config: Assembly | None, seed: int) -> tuple[Simulation, Simulated]:
    director, assembly = picker.director, picker.assembly()
    headers = ask.fields
    subset = None if ask.candidate_subset is None else Subset.parse(ask.candidate_subset)
    try:
        snapshot = made_up(picker.snapshot(), ask.endpoints, assembly.taggers, now=picker.clock.now())
    except UnknownEndpointError as error:
        raise BadAdminRequestError(f"endpoints: {error}") from error
    found = director.in_flight(frozenset(ask.victims)) if ask.victims else {}
    for name in ask.victims:
        if name not in found:
            raise BadAdminRequestError(
                f"victims: no request {quoted(name)} is in flight that has no answer yet or whose tenant has a quota: "
                "write the requestId of a decision"
            )
    simulation = director.simulation(None if config is None else config.pipeline, snapshot, list(found.values()))
    try:
        incoming = simulation.read(headers, ask.bytes, subset)
    except RequestError as error:
        return simulation, simulation.refusal(headers, error)
    return simulation, simulation.run(incoming, seed=seed)


def _answer(picker: PickerView, simulation: Simulation, found: Simulated, config: Assembly | None) -> web.Response:
    record = simulated_record(simulation, found, at=picker.clock.utc(), config_generation=picker.config().generation)
    more: dict[str, object] = {}
    if isinstance(found.outcome, RequestError):
        more["error"] = error_of(found.outcome)
    if found.waits:
        more["waits"] = found.waits
    if simulation.ended:
        more["victims"] = [
            {
                "requestId": each.request.id,
                "tenant": each.request.fairness_id,
                "priority": each.request.priority,
                "endpoints": each.endpoints,
                "hasLowerPriority": each.request.priority < found.request.priority,
            }
            for each in simulation.ended
        ]
    if found.problems:
        more["problems"] = found.problems
    if config is not None:
        more["warnings"] = [*map(str, config.warnings), *_not_in_effect(config, picker.assembly())]
    return as_json({**msgspec.to_builtins(record), **more})


class Configs:
    """Configurations that are tried, the last few of them kept."""

    def __init__(self, picker: PickerView) -> None:
        self._picker = picker
        self._one_at_a_time = asyncio.Lock()
        self._built: OrderedDict[str, Assembly] = OrderedDict()
        self._beside: Assembly | None = None

    async def of(self, config: str | Mapping[str, Any]) -> Assembly:
        """Return another configuration, assembled; equal plugins are those of the configuration in effect.

        Raises BadAdminRequestError for one that is not valid.
        """
        try:
            text = config if isinstance(config, str) else msgspec.json.encode(config).decode()
        except (UnicodeEncodeError, TypeError) as error:
            raise BadAdminRequestError(f"config: it is not what JSON can have: {error}") from error
        async with self._one_at_a_time:
            beside = await self._picker.call(self._picker.assembly)
            if beside is not self._beside:
                self._built.clear()
                self._beside = beside
            if text not in self._built:
                try:
                    self._built[text] = await asyncio.to_thread(self._picker.build, text)
                except ConfigurationError as error:
                    raise BadAdminRequestError(str(error)) from error
                if len(self._built) > _MOST_CONFIGS:
                    self._built.popitem(last=False)
            self._built.move_to_end(text)
            return self._built[text]


async def read_ask(request: web.Request, pool: str) -> _Ask:
    """Return the request to simulate; raises AdminError."""
    ask = read_as(_Ask, await read_object(request, most_bytes=MOST_BYTES, or_yaml=True))
    if ask.pool not in ("", pool):
        message = f"there is no pool {quoted(ask.pool)} here: leave it out, or write {quoted(pool)}"
        raise AdminError(HTTPStatus.NOT_FOUND, "NotFound", message)
    if ask.seed and not _SEED.fullmatch(ask.seed):
        raise BadAdminRequestError(f"seed is {quoted(ask.seed)}: write up to 16 hexadecimal digits, as records have it")
    if len(ask.endpoints) > MOST_CHANGES:
        raise BadAdminRequestError(f"endpoints: {len(ask.endpoints)} are changed, and {MOST_CHANGES} may be at once")
    return ask


def _not_in_effect(config: Assembly, now: Assembly) -> Sequence[str]:
    """Return warnings about parts of a configuration that a simulation cannot run."""
    sources = {feed.source.name for feed in now.feeds}
    untagged = [each.name for each in config.taggers if each not in now.taggers]
    uncollected = [feed.source.name for feed in config.feeds if feed.source.name not in sources]
    return [
        *(f"{name}: endpoints are tagged by the configuration in effect, not by this one" for name in untagged),
        *(f"{name}: nothing is collected by it while it is only tried" for name in uncollected),
    ]


def decision_routes(loop: LoopCalls, recorder: Recorder) -> tuple[web.RouteDef, ...]:
    """Return the routes; the recorder is of the loop."""

    async def latest(request: web.Request) -> web.Response:
        """Answer with the latest records, newest first."""
        limit = read_number(request, "limit", _SHOWN, least=1, most=_MOST_SHOWN)
        (at, after), request_id = _since(request), read_one(request, "request")

        def found() -> tuple[list[bytes], dict[str, object]]:
            records = recorder.ring.latest(
                limit, since=at, after=after, request_id=request_id, most_bytes=_MOST_RECORD_BYTES
            )
            return records, {"recorded": dict(recorder.recorded), "lost": dict(recorder.lost)}

        records, counts = await loop.call(found)
        return as_json({"decisions": [Raw(record) for record in records], **counts})

    async def one(request: web.Request) -> web.Response:
        """Answer with one record."""
        record_id = request.match_info["name"]
        found = await loop.call(lambda: recorder.ring.get(record_id))
        if found is None:
            message = f"no decision {quoted(record_id)} is kept: the latest are at {DECISIONS_PATH}"
            raise AdminError(HTTPStatus.NOT_FOUND, "NotFound", message)
        return as_json(Raw(found))

    return web.get(DECISIONS_PATH, latest), web.get(DECISIONS_PATH + "/{name:.+}", one)


def _since(request: web.Request) -> tuple[float | None, str]:
    """Return the time of the query, None without one, and the id of a decision, empty without one."""
    text = read_one(request, "since")
    if ":" not in text:
        return None, text
    try:
        at = datetime.fromisoformat(text.replace(" ", "+"))  # a plus sign of a query is a blank
    except ValueError:
        raise BadAdminRequestError(
            f"since is {quoted(text)}: write a time such as 2026-01-31T12:00:00Z, or the id of a decision"
        ) from None
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp(), ""
