# SPDX-License-Identifier: Apache-2.0
"""Decisions on the admin port: the latest ones, and where a request would go, in this pool or a hypothetical one."""

import asyncio
import dataclasses
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
from epp.explain.recorder import Recorder
from epp.framework.arrays import read_only
from epp.framework.candidates import Subset
from epp.framework.datalayer import Tagger
from epp.framework.endpoint import Endpoint
from epp.framework.errors import ConfigurationError, RequestError
from epp.framework.headers import METHOD, OBJECTIVE, PATHS
from epp.framework.limits import NonNegative, Share
from epp.framework.messages import hint_at, listed, quoted
from epp.framework.plugin import Parameters
from epp.framework.records import Records
from epp.framework.request import Headers
from epp.framework.snapshot import (
    ANSWERS,
    AVOIDED,
    IN_FLIGHT,
    KV_USAGE,
    LOAD_AT,
    METRICS_AT,
    REACHABLE,
    REFUSES,
    RUNNING,
    WAITING,
    Column,
    Snapshot,
)
from epp.routing.datastore.store import available_of
from epp.routing.director import Simulated, Simulation
from epp.routing.director.incoming_request import DEFAULT_PATH

MOST_CHANGES = 256
"""Endpoints that may be changed at once: changed labels are tagged again."""


class EndpointChange(Parameters, frozen=True, kw_only=True):
    """Changed values of an endpoint; null means unknown, and omitted values do not change."""

    waiting: NonNegative | UnsetType | None = UNSET
    """Requests in the engine's queue."""
    running: NonNegative | UnsetType | None = UNSET
    """Requests in the engine's batch."""
    kv_usage: Share | UnsetType | None = UNSET
    """Share of the KV cache in use."""
    in_flight: NonNegative | UnsetType = UNSET
    """Requests of this picker in flight."""
    available: bool | UnsetType = UNSET
    """Whether it can be reached and is not excluded."""
    labels: dict[str, str | None] | UnsetType = UNSET
    """Labels to set; null removes a label."""

    @property
    def numbers(self) -> Mapping[Column, float]:
        given = {WAITING: self.waiting, RUNNING: self.running, KV_USAGE: self.kv_usage, IN_FLIGHT: self.in_flight}
        found = {
            column: column.unknown if value is None else float(value)
            for column, value in given.items()
            if not isinstance(value, UnsetType)
        }
        if not isinstance(self.available, UnsetType):
            found |= {REACHABLE: ANSWERS if self.available else REFUSES, AVOIDED: 0.0}
        return found


def made_up(
    snapshot: Snapshot, changes: Mapping[str, EndpointChange], taggers: Sequence[Tagger[Any]], *, now: float
) -> Snapshot:
    """Return a snapshot with changes by name, `namespace/name` or address of an endpoint; raises AdminError.

    The metrics of a changed endpoint are dated `now`. Taggers read the changed labels.
    """
    if not changes:
        return snapshot
    endpoints = list(snapshot.endpoints.values)
    slots = _slots_by_name(endpoints)
    columns = {name: values.copy() for name, values in snapshot.columns.items() if name in _CHANGEABLE}
    attributes: dict[str, list[object]] = {}
    for name, change in changes.items():
        found = slots.get(name, [])
        if len(found) != 1:
            raise BadAdminRequestError(f"endpoints: {_not_one(name, slots, found, endpoints)}")
        (slot,) = found
        for column, value in change.numbers.items():
            columns[column.name][slot] = value
        if change.numbers.keys() & {WAITING, RUNNING, KV_USAGE}:
            columns[METRICS_AT.name][slot] = columns[LOAD_AT.name][slot] = now
        endpoint = endpoints[slot]
        if isinstance(change.labels, UnsetType) or endpoint is None:
            continue
        merged = {**endpoint.labels, **change.labels}
        labels = {key: value for key, value in merged.items() if value is not None}
        endpoints[slot] = changed = dataclasses.replace(endpoint, labels=labels)
        for tagger in taggers:
            for attribute, record in tagger.tag_made_up(changed).attributes.items():
                records = attributes.setdefault(attribute.name, list(snapshot.records(attribute).values))
                records[slot] = record
    relabels = any(not isinstance(change.labels, UnsetType) for change in changes.values())
    at = snapshot.slots
    return msgspec.structs.replace(
        snapshot,
        available=read_only(available_of(at, columns[REACHABLE.name][at], columns[AVOIDED.name][at])),
        endpoints=Records(tuple(endpoints)) if relabels else snapshot.endpoints,
        columns={**snapshot.columns, **{name: read_only(values) for name, values in columns.items()}},
        attributes={**snapshot.attributes, **{name: Records(tuple(values)) for name, values in attributes.items()}},
    )


_CHANGEABLE = {
    column.name for column in (WAITING, RUNNING, KV_USAGE, IN_FLIGHT, METRICS_AT, LOAD_AT, REACHABLE, AVOIDED)
}


def _slots_by_name(endpoints: Sequence[Endpoint | None]) -> Mapping[str, list[int]]:
    slots: dict[str, list[int]] = {}
    for slot, endpoint in enumerate(endpoints):
        if endpoint is not None:
            for name in {endpoint.name, endpoint.id, endpoint.hostport}:
                slots.setdefault(name, []).append(slot)
    return slots


def _not_one(
    name: str, slots: Mapping[str, list[int]], found: Sequence[int], endpoints: Sequence[Endpoint | None]
) -> str:
    if found:
        ids = [endpoint.id for slot in found[:2] if (endpoint := endpoints[slot]) is not None]
        return f"{len(found)} endpoints are named {quoted(name)}: write namespace/name, such as {ids[0]}"
    known = list(dict.fromkeys(endpoint.name for endpoint in endpoints if endpoint is not None))
    some = f"there are {listed(known, 5)}" if known else "the pool is empty"
    return f"there is no endpoint {quoted(name)}: {hint_at(name, slots, otherwise=some)}"


PATH = "/api/simulate-schedule"
MOST_BYTES = 1024 * 1024
"""Largest body of a request to simulate, including the prompt."""
DECISIONS_PATH = "/api/decisions"
_SHOWN = 50
_MOST_SHOWN = 1000
_MOST_RECORD_BYTES = 2 * 1024 * 1024
"""Most bytes of records in one answer: copying more would delay requests."""
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
    """Seed of random draws, in hexadecimal digits as in records; empty for any."""
    config: str | dict[str, Any] | UnsetType = UNSET
    """Another configuration: its text, or the document itself."""
    endpoints: dict[str, EndpointChange] = msgspec.field(default_factory=dict)
    """Endpoints with other values, by name or address."""
    victims: list[str] = msgspec.field(default_factory=list)
    """Ids of requests in flight that are taken as ended."""

    @property
    def bytes(self) -> bytes:
        if self.body is None:
            return b""
        try:
            return self.body.encode() if isinstance(self.body, str) else msgspec.json.encode(self.body)
        except (UnicodeEncodeError, TypeError) as error:
            raise BadAdminRequestError(f"body: it is not what JSON can have: {error}") from error

    @property
    def fields(self) -> Headers:
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
    configs = Configs(picker)

    async def simulate(request: web.Request) -> web.Response:
        """Answer with the record of a request that is only tried, and with its error where it is not routed."""
        ask = await read_ask(request, picker.pool)
        config = None if isinstance(ask.config, UnsetType) else await configs.of(ask.config)
        await picker.loop.ask(picker.complete)
        seed = int(ask.seed, 16) if ask.seed else randbits(64)
        simulation, found = await picker.loop.call(lambda: _simulated(picker, ask, config, seed))
        return await picker.loop.call(lambda: _answer(picker, simulation, found, config))

    return (web.post(PATH, simulate),)


def _simulated(picker: PickerView, ask: _Ask, config: Assembly | None, seed: int) -> tuple[Simulation, Simulated]:
    director, assembly = picker.director, picker.assembly()
    headers = ask.fields
    subset = None if ask.candidate_subset is None else Subset.parse(ask.candidate_subset)
    snapshot = made_up(picker.snapshot(), ask.endpoints, assembly.taggers, now=picker.clock.now())
    found = director.in_flight(frozenset(ask.victims)) if ask.victims else {}
    for name in ask.victims:
        if name not in found:
            raise BadAdminRequestError(
                f"victims: no request {quoted(name)} is in flight that has no answer yet or whose tenant has a quota: "
                "write the requestId of a decision"
            )
    simulation = director.simulation(None if config is None else config.pipeline, snapshot, list(found.values()))
    return simulation, tried(simulation, headers, ask.bytes, subset, seed=seed)


def tried(simulation: Simulation, headers: Headers, body: bytes, subset: Subset | None, *, seed: int) -> Simulated:
    try:
        incoming = simulation.read(headers, body, subset)
    except RequestError as error:
        return simulation.refusal(headers, error)
    return simulation.run(incoming, seed=seed)


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
            beside = await self._picker.loop.call(self._picker.assembly)
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

        def found() -> dict[str, object]:
            records = recorder.ring.latest(
                limit, since=at, after=after, request_id=request_id, most_bytes=_MOST_RECORD_BYTES
            )
            recorded, lost = dict(recorder.recorded), dict(recorder.lost)
            return {"decisions": [Raw(record) for record in records], "recorded": recorded, "lost": lost}

        return as_json(await loop.call(found))

    async def one(request: web.Request) -> web.Response:
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
