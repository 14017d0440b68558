# SPDX-License-Identifier: Apache-2.0
"""Decisions on the admin port: the latest ones, and those of simulated requests in this pool or a hypothetical one."""

import asyncio
import dataclasses
import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from secrets import randbits
from typing import Any

import msgspec
from aiohttp import web
from msgspec import UNSET, Raw, UnsetType

from epp.admin.answers import (
    BadAdminRequestError,
    LoopCalls,
    NotFoundError,
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
from epp.framework.messages import listed, quoted
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
from epp.framework.suggestions import hint_at
from epp.routing.datastore.store import available_of
from epp.routing.director import Simulated, Simulation
from epp.routing.director.incoming_request import DEFAULT_PATH

MOST_CHANGES = 256
"""Most changed endpoints of one request: taggers read all changed labels."""


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
    """Whether the endpoint can be reached and is not excluded."""
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

    Changed metrics get the time `now`. Taggers read the changed labels.
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
"""Largest body of a simulation request, including the prompt."""
DECISIONS_PATH = "/api/decisions"
_SHOWN = 50
_MOST_SHOWN = 1000
_MOST_RECORD_BYTES = 2 * 1024 * 1024
"""Most bytes of records in one answer: copying more would delay requests."""
_MOST_CONFIGS = 4
_SEED = re.compile(r"[0-9a-fA-F]{1,16}")
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


class _SimulationBody(Parameters, frozen=True, kw_only=True):
    """A request as a client would send it, and changes to the pool and the configuration."""

    headers: dict[str, str | list[str]] = msgspec.field(default_factory=dict)
    method: str = "POST"
    path: str = DEFAULT_PATH
    body: Any = None
    """Body of the request: text, or a value that is sent as JSON."""
    candidate_subset: list[str] | None = None
    """Addresses of the endpoints that the gateway allows; null for all."""
    objective: str = ""
    """Name of an InferenceObjective, as in its header."""
    pool: str = ""
    """Name of the pool; may be empty."""
    seed: str = ""
    """Seed of random draws, in hexadecimal digits as in records; empty for any."""
    config: str | dict[str, Any] | UnsetType = UNSET
    """Another configuration: its text, or the document itself."""
    endpoints: dict[str, EndpointChange] = msgspec.field(default_factory=dict)
    """Changes of endpoints, by name or address."""
    victims: list[str] = msgspec.field(default_factory=list)
    """Ids of requests in flight that count as ended."""

    @property
    def bytes(self) -> bytes:
        return b"" if self.body is None else _encoded("body", self.body)

    @property
    def fields(self) -> Headers:
        found = [(METHOD, self.method), (PATHS[0], self.path)]
        if self.objective:
            found.append((OBJECTIVE[0], self.objective))  # takes precedence over one in the headers
        for name, values in self.headers.items():
            if not _HEADER.fullmatch(name):
                raise BadAdminRequestError(
                    f"headers: {quoted(name)} is not a header name: write letters, digits and hyphens (method and path "
                    "are separate keys)"
                )
            found += [(name, value) for value in ([values] if isinstance(values, str) else values)]
        return Headers(found)


def _encoded(name: str, value: object) -> bytes:
    """Return a text, or the JSON of another value; `name` is its key in the body of the request, for errors."""
    try:
        return value.encode() if isinstance(value, str) else msgspec.json.encode(value)
    except (UnicodeEncodeError, TypeError) as error:
        raise BadAdminRequestError(f"{name}: cannot be encoded as JSON: {error}") from error


def simulation_routes(picker: PickerView) -> tuple[web.RouteDef, ...]:
    configs = Configs(picker)

    async def simulate(request: web.Request) -> web.Response:
        """Return the record of a simulated request, and its error if it is not routed."""
        body = await read_simulation(request, picker.pool)
        config = None if isinstance(body.config, UnsetType) else await configs.of(body.config)
        await picker.loop.ask(picker.complete)
        seed = int(body.seed, 16) if body.seed else randbits(64)
        simulation, found = await picker.loop.call(lambda: _simulated(picker, body, config, seed))
        return await picker.loop.call(lambda: _answer(picker, simulation, found, config))

    return (web.post(PATH, simulate),)


def _simulated(
    picker: PickerView, body: _SimulationBody, config: Assembly | None, seed: int
) -> tuple[Simulation, Simulated]:
    director, assembly = picker.director, picker.assembly()
    headers = body.fields
    subset = None if body.candidate_subset is None else Subset.parse(body.candidate_subset)
    snapshot = made_up(picker.snapshot(), body.endpoints, assembly.taggers, now=picker.clock.now())
    found = director.in_flight(frozenset(body.victims)) if body.victims else {}
    for name in body.victims:
        if name not in found:
            raise BadAdminRequestError(
                f"victims: request {quoted(name)} is not in flight, or has an answer and a tenant without a quota: "
                "write the requestId of a decision"
            )
    simulation = director.simulation(None if config is None else config.pipeline, snapshot, list(found.values()))
    return simulation, tried(simulation, headers, body.bytes, subset, seed=seed)


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
    """Assembled configurations of simulated requests; the last few are cached."""

    def __init__(self, picker: PickerView) -> None:
        self._picker = picker
        self._one_at_a_time = asyncio.Lock()
        self._built: OrderedDict[str, Assembly] = OrderedDict()
        self._in_effect: Assembly | None = None
        """The configuration that the cached ones share plugins with."""

    async def of(self, config: str | Mapping[str, Any]) -> Assembly:
        """Assemble another configuration, which shares equal plugins with the configuration in effect.

        Raises BadAdminRequestError for an invalid one.
        """
        text = _encoded("config", config).decode()
        async with self._one_at_a_time:
            in_effect = await self._picker.loop.call(self._picker.assembly)
            if in_effect is not self._in_effect:
                self._built.clear()
                self._in_effect = in_effect
            if text not in self._built:
                try:
                    self._built[text] = await asyncio.to_thread(self._picker.build, text)
                except ConfigurationError as error:
                    raise BadAdminRequestError(str(error)) from error
                if len(self._built) > _MOST_CONFIGS:
                    self._built.popitem(last=False)
            self._built.move_to_end(text)
            return self._built[text]


async def read_simulation(request: web.Request, pool: str) -> _SimulationBody:
    """Return the request to simulate; raises AdminError."""
    body = read_as(_SimulationBody, await read_object(request, most_bytes=MOST_BYTES, or_yaml=True))
    if body.pool not in ("", pool):
        raise NotFoundError(f"there is no pool {quoted(body.pool)} here: leave it out, or write {quoted(pool)}")
    if body.seed and not _SEED.fullmatch(body.seed):
        raise BadAdminRequestError(f"seed is {quoted(body.seed)}: write up to 16 hexadecimal digits, as in records")
    if len(body.endpoints) > MOST_CHANGES:
        raise BadAdminRequestError(f"endpoints: {len(body.endpoints)} are changed: change {MOST_CHANGES} at most")
    return body


def _not_in_effect(config: Assembly, now: Assembly) -> Sequence[str]:
    """Return warnings about parts of a configuration that a simulation cannot run."""
    sources = {feed.source.name for feed in now.feeds}
    untagged = [each.name for each in config.taggers if each not in now.taggers]
    uncollected = [feed.source.name for feed in config.feeds if feed.source.name not in sources]
    return [
        *(f"{name}: endpoints are tagged by the configuration in effect, not by this one" for name in untagged),
        *(f"{name}: collects nothing during a simulation" for name in uncollected),
    ]


def decision_routes(loop: LoopCalls, recorder: Recorder) -> tuple[web.RouteDef, ...]:
    """Return the routes; `recorder` belongs to the loop."""

    async def latest(request: web.Request) -> web.Response:
        """Return the latest records, newest first."""
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
            raise NotFoundError(f"no decision {quoted(record_id)} is kept: the latest are at {DECISIONS_PATH}")
        return as_json(Raw(found))

    return web.get(DECISIONS_PATH, latest), web.get(DECISIONS_PATH + "/{name:.+}", one)


def _since(request: web.Request) -> tuple[float | None, str]:
    """Return the time in the query (None if there is none), and the id of a decision (empty if there is none)."""
    text = read_one(request, "since")
    if ":" not in text:
        return None, text
    try:
        at = datetime.fromisoformat(text.replace(" ", "+"))  # a plus sign in a query is decoded as a space
    except ValueError:
        raise BadAdminRequestError(
            f"since is {quoted(text)}: write a time such as 2026-01-31T12:00:00Z, or the id of a decision"
        ) from None
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp(), ""
