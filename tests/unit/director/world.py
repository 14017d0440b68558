# SPDX-License-Identifier: Apache-2.0
"""A director over four endpoints, and plugins that keep what they are asked."""

import asyncio
from collections.abc import Sequence

from epp.config import Builder, assemble, load_text
from epp.framework import (
    Admitter,
    Candidates,
    Endpoint,
    Headers,
    ManualClock,
    Parameters,
    PreRequest,
    Producer,
    Request,
    RequestHeaders,
    SchedulingResult,
    Screener,
)
from epp.framework.datalayer import Report
from epp.framework.plugin import Plugin
from epp.framework.refusals import SaturatedError
from epp.framework.registry import Registry
from epp.framework.snapshot import IN_FLIGHT, KV_USAGE, WAITING
from epp.routing.datastore import Datastore
from epp.routing.director import (
    Director,
    DirectorObserver,
    PendingRequest,
    PoolPolicies,
    Refusal,
    Routing,
    Runtime,
    Seeds,
    Subset,
)
from tests.support.admitter import Gate

BODY = b'{"model":"m","prompt":"hello"}'
POST = Headers([(":path", "/v1/completions?stream=true"), ("x-request-id", "always the same")])
ENDPOINTS = [Endpoint(name, f"10.0.0.{number}", 8000) for number, name in enumerate("abcd", 1)]


class SaysNo(Admitter):
    plugin_type = "says-no"

    def admit(self, request: Request, candidates: Candidates):
        raise SaturatedError("full")


class BreaksParameters(Parameters, frozen=True):
    where: str


class Breaks(
    RequestHeaders[BreaksParameters],
    Producer[BreaksParameters],
    Admitter[BreaksParameters],
    PreRequest[BreaksParameters],
):
    """Raises in one of its hooks."""

    plugin_type = "breaks"

    def request_headers(self, request: Request) -> None:
        self._raise("request_headers")

    def produce(self, request: Request, candidates: Candidates) -> None:
        self._raise("produce")

    def admit(self, request: Request, candidates: Candidates) -> None:
        self._raise("admit")

    def pre_request(self, request: Request, result: SchedulingResult) -> None:
        self._raise("pre_request")

    def _raise(self, hook: str) -> None:
        if self.parameters.where == hook:
            raise RuntimeError(f"broken {hook}")


class KeepsParameters(Parameters, frozen=True):
    names: tuple[str, ...]


class AddsParameters(Parameters, frozen=True):
    declared: tuple[str, ...]


class Adds(PreRequest[AddsParameters]):
    plugin_type = "adds"

    def setup(self) -> None:
        self.sets_headers = self.parameters.declared

    def pre_request(self, request: Request, result: SchedulingResult) -> dict[str, str]:
        return {"x-one": result.targets[0].name}


class Keeps(Screener[KeepsParameters]):
    """Keeps endpoints by name, and records how many it saw."""

    plugin_type = "keeps"

    def screen(self, request: Request, candidates: Candidates):
        self.seen = len(candidates)
        return [endpoint.name in self.parameters.names for endpoint in candidates.endpoints]


class Reads(Producer):
    """Records the content that it is shown."""

    plugin_type = "reads"
    reads_content = True

    def setup(self) -> None:
        self.seen: list[bytes] = []

    def produce(self, request: Request, candidates: Candidates) -> None:
        if not candidates.profile:  # a trial with made-up endpoints
            self.seen.append(request.content)


class Counts(Producer, Admitter):
    """Records the number of candidates that it is given."""

    plugin_type = "counts"

    def setup(self) -> None:
        self.produced: list[int] = []
        self.admitted: list[int] = []

    def produce(self, request: Request, candidates: Candidates) -> None:
        self.produced.append(len(candidates))

    def admit(self, request: Request, candidates: Candidates):
        self.admitted.append(len(candidates))


class CountsFew(Counts):
    """The same for the candidates that filters may keep."""

    plugin_type = "counts-few"
    per_candidate = True


class Events(DirectorObserver):
    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []
        self.refusals: list[Refusal] = []

    def routed(self, request, result, scheduling_seconds):
        self.told.append(("routed", result.targets[0].name))

    def refused(self, refusal):
        self.told.append(("refused", f"{refusal.model} {type(refusal.error).__name__}"))
        self.refusals.append(refusal)

    def model_rewritten(self, request, rewrite):
        self.told.append((f"rewritten by {rewrite.name}", request.model))

    def plugin_failed(self, plugin, error, problem):
        self.told.append(("failed", f"{plugin}: {error}"))


class World:
    """A director over endpoints, by default four."""

    def __init__(
        self,
        *plugins: str,
        rest: str = "",
        endpoints: Sequence[Endpoint] = ENDPOINTS,
        more: Sequence[type[Plugin]] = (),
        policies: PoolPolicies | None = None,
        **options,
    ) -> None:
        self.clock = ManualClock()
        self.store = Datastore(self.clock)
        self.store.replace(endpoints)
        self.events = Events()
        registry = Registry()
        for cls in (Gate, SaysNo, Breaks, Adds, Keeps, Reads, Counts, CountsFew, *more):
            registry.register(cls)
        text = f"apiVersion: llm-d.ai/v1\nkind: EndpointPickerConfig\nplugins: [{', '.join(plugins)}]\n{rest}"
        self.assembly = assemble(load_text(text), Builder(registry, self.clock, experimental=True))
        self.director = Director(
            Runtime(self.store, self.clock, self.events), self.assembly.pipeline, seeds=Seeds(b"test"), **options
        )
        if policies is not None:
            self.director.use_policies(policies)

    def route(
        self, body: bytes = BODY, headers: Headers = POST, subset: Subset | None = None
    ) -> Routing | PendingRequest:
        return self.director.route(headers, body, subset)

    def plugin(self, name: str):
        return self.assembly.instances.by_name[name]

    @property
    def hold(self) -> asyncio.Future[None]:
        """The latest request that the gate holds."""
        return self.plugin("gate").held[-1]

    def report(self, number: int, waiting: float) -> None:
        """Have an endpoint, of this number, report its queue and an empty KV cache."""
        self.store.report(self.store.endpoints[number], Report({WAITING: waiting, KV_USAGE: 0.0}))

    def in_flight(self) -> dict[str, int]:
        snapshot = self.store.snapshot()
        counts = {e.name: int(snapshot.column(IN_FLIGHT)[slot]) for slot, e in enumerate(self.store.endpoints)}
        return {name: count for name, count in counts.items() if count}
