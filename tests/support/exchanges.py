# SPDX-License-Identifier: Apache-2.0
"""Sessions over a director with three endpoints, and the messages a gateway sends."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from epp.config import Builder, assemble, load_text
from epp.config.load import sample_texts
from epp.extproc.budgets import Budgets, Claim
from epp.extproc.codec import RequestPiece
from epp.extproc.exchange import Answer, ExchangeSettings, GatewayTraits
from epp.extproc.session import Session
from epp.extproc.settings import BudgetSettings
from epp.extproc.wire import (
    CommonResponse,
    HeaderMap,
    HeaderValue,
    HttpBody,
    HttpHeaders,
    HttpTrailers,
    Metadata,
    ProcessingRequest,
    ProcessingResponse,
    ProtocolConfiguration,
)
from epp.framework import Endpoint, ManualClock
from epp.framework.headers import DESTINATION_NAMESPACE, DESTINATION_SERVED
from epp.framework.plugin import Plugin
from epp.framework.registry import Registry
from epp.framework.snapshot import IN_FLIGHT, SERVED
from epp.routing.datastore import Datastore
from epp.routing.director import Cause, Director, DirectorObserver, PendingRequest, Runtime, Seeds

BODY = b'{"model":"m","messages":[{"role":"user","content":"hello"}]}'


class Endings(DirectorObserver):
    def __init__(self) -> None:
        self.causes: list[Cause] = []
        self.expired_ids: list[str] = []
        self.refusals: list[str] = []

    def completed(self, routing, cause):
        self.causes.append(cause)

    def expired(self, routing):
        self.expired_ids.append(routing.request.id)

    def refused(self, refusal):
        self.refusals.append(type(refusal.error).__name__)


class Exchange:
    """A session whose replies are decoded."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.is_to_end = False
        """Whether the session wants to be evicted."""
        session.on_eviction = self._end_soon

    def _end_soon(self) -> None:
        self.is_to_end = True

    @property
    def done(self) -> bool:
        return self._session.done

    @property
    def silence_timeout(self) -> float | None:
        return self._session.silence_timeout

    def receive(self, *messages: ProcessingRequest | RequestPiece) -> list[ProcessingResponse | PendingRequest]:
        """Send messages in order; return the answers to the last one."""
        *_, answers = [decoded(self._session.receive(message)) for message in messages]
        return answers

    def resume(self) -> list[ProcessingResponse | PendingRequest]:
        return decoded(self._session.resume())

    def evict(self) -> list[ProcessingResponse | PendingRequest]:
        return decoded(self._session.evict())

    def on_silence(self) -> list[ProcessingResponse | PendingRequest]:
        return decoded(self._session.on_silence())

    def close(self, cause: Cause = Cause.CLIENT_DISCONNECT) -> None:
        self._session.close(cause)


def new_claim() -> Claim:
    """Return a claim on budgets of its own."""
    budgets = Budgets(BudgetSettings())
    return Claim(budgets, budgets.gathered.account())


def decoded(answers: Sequence[Answer]) -> list[ProcessingResponse | PendingRequest]:
    return [
        answer if isinstance(answer, PendingRequest) else ProcessingResponse.FromString(answer) for answer in answers
    ]


@dataclass
class Bench:
    store: Datastore
    director: Director
    clock: ManualClock
    endings: Endings
    plugins: Mapping[str, Plugin]

    def session(self, **options) -> Exchange:
        traits = options.pop("traits", None) or GatewayTraits()
        return Exchange(Session(self.director, ExchangeSettings(**options), traits, new_claim()))

    def routed(self, first: ProcessingRequest | None = None, **options) -> Exchange:
        """Return a session whose request has been routed: its first message, then the body."""
        session = self.session(**options)
        session.receive(request_headers() if first is None else first, request_body(BODY))
        return session

    @property
    def in_flight(self) -> int:
        return int(sum(self.store.snapshot().column(IN_FLIGHT)))

    @property
    def served(self) -> int:
        return int(sum(self.store.snapshot().column(SERVED)))


def new_bench(config: str | None = None, observe: Callable[[ManualClock], DirectorObserver] | None = None) -> Bench:
    """A bench with this configuration, which may name plugins of `admitter` and `refusing`, or with llm-d's default.

    The director has the observer for the bench's clock that `observe` returns, or else the bench's `endings`.
    """
    clock = ManualClock()
    store = Datastore(clock)
    store.replace(
        [
            Endpoint("a", "10.0.0.1", 8000),
            Endpoint("b", "10.0.0.2", 8000),
            Endpoint("b2", "10.0.0.2", 8001),
            Endpoint("c", "fd00::3", 8000),
        ]
    )
    endings = Endings()
    loaded = load_text(sample_texts()["llm-d-default"] if config is None else config)
    assembly = assemble(loaded, Builder(Registry(modules=["tests.support.admitter", "tests.support.refusing"]), clock))
    seeds = Seeds(b"secret 3")  # the first tie goes to a
    director = Director(Runtime(store, clock, observe(clock) if observe else endings), assembly.pipeline, seeds=seeds)
    return Bench(store, director, clock, endings, assembly.instances.by_name)


def header_map(fields: dict[str, str]) -> HeaderMap:
    return HeaderMap(headers=[HeaderValue(key=key, raw_value=value.encode()) for key, value in fields.items()])


def request_headers(path: str = "/v1/chat/completions", *, end: bool = False, **more: str) -> ProcessingRequest:
    fields = {":method": "POST", ":path": path, "x-request-id": "r-1", **more}
    return ProcessingRequest(request_headers=HttpHeaders(headers=header_map(fields), end_of_stream=end))


def request_body(body: bytes, *, end: bool = True) -> ProcessingRequest:
    return ProcessingRequest(request_body=HttpBody(body=body, end_of_stream=end))


def request_trailers() -> ProcessingRequest:
    return ProcessingRequest(request_trailers=HttpTrailers())


def response_headers(status: str = "200", *, end: bool = False, **more: str) -> ProcessingRequest:
    fields = header_map({":status": status, **more})
    return ProcessingRequest(response_headers=HttpHeaders(headers=fields, end_of_stream=end))


def response_body(body: bytes, *, end: bool = False) -> ProcessingRequest:
    return ProcessingRequest(response_body=HttpBody(body=body, end_of_stream=end))


def response_trailers() -> ProcessingRequest:
    return ProcessingRequest(response_trailers=HttpTrailers())


def in_modes(message: ProcessingRequest, request: str, response: str = "NONE") -> ProcessingRequest:
    """Make a message the first one of a gateway that states these body modes."""
    message.protocol_config.CopyFrom(ProtocolConfiguration(request_body_mode=request, response_body_mode=response))
    return message


def served_by(message: ProcessingRequest, address: str) -> ProcessingRequest:
    """Report in a message which endpoint served."""
    message.metadata_context.filter_metadata[DESTINATION_NAMESPACE].update({DESTINATION_SERVED: address})
    return message


def kinds(replies: Sequence[ProcessingResponse]) -> list[str | None]:
    return [reply.WhichOneof("response") for reply in replies]


def common(reply: ProcessingResponse) -> CommonResponse:
    """Return the changes that a reply makes to its message."""
    found: CommonResponse = getattr(reply, reply.WhichOneof("response") or "").response
    return found


def headers_set(reply: ProcessingResponse) -> dict[str, str]:
    mutation = common(reply).header_mutation
    return {option.header.key: option.header.raw_value.decode() for option in mutation.set_headers}


def streamed(replies: Sequence[ProcessingResponse], kind: str) -> tuple[bytes, list[bool]]:
    """Return the full-duplex body in replies, and which of its pieces end it."""
    found = [common(reply).body_mutation.streamed_response for reply in replies if reply.HasField(kind)]
    return b"".join(piece.body for piece in found), [piece.end_of_stream for piece in found]


def subset(*addresses: str, as_string: bool = False) -> Metadata:
    metadata = Metadata()
    key = "x-gateway-destination-endpoint-subset"
    metadata.filter_metadata["envoy.lb.subset_hint"].update(
        {key: ",".join(addresses) if as_string else list(addresses)}
    )
    return metadata
