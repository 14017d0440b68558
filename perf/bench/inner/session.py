# SPDX-License-Identifier: Apache-2.0
"""CPU time of the session: from serialised requests of a gateway to serialised replies, without socket and scheduling.

The messages are those of Envoy 1.40. The decision is made once, and reused for every request.
"""

import time
from collections.abc import Callable, Sequence

from configs import llm_d_default
from timing import no_log_lines, quick, tell

from epp.config import Builder, assemble
from epp.extproc.budgets import Budgets, Claim
from epp.extproc.codec import decode
from epp.extproc.exchange import ExchangeSettings, GatewayTraits
from epp.extproc.session import Session
from epp.extproc.settings import BudgetSettings
from epp.extproc.wire import (
    FULL_DUPLEX_STREAMED,
    HeaderMap,
    HeaderValue,
    HttpBody,
    HttpHeaders,
    HttpTrailers,
    Metadata,
    ProcessingRequest,
    ProtocolConfiguration,
)
from epp.framework import Endpoint, Headers, SystemClock
from epp.framework.plugin import Guard
from epp.framework.registry import Registry
from epp.routing.datastore import Datastore
from epp.routing.director import Director, DirectorObserver, Routing, Runtime
from epp.routing.outliers.outlier_detector import OutlierDetector

STREAMED, BUFFERED = 1, 2
SENT = {
    ":authority": "127.0.0.1:35883",
    ":path": "/v1/chat/completions",
    ":method": "POST",
    ":scheme": "http",
    "content-type": "application/json",
    "authorization": "Bearer sk-none",
    "accept": "*/*",
    "accept-encoding": "gzip, deflate",
    "user-agent": "Python/3.11 aiohttp/3.14.5",
    "content-length": "478",
    "x-forwarded-for": "192.0.2.2",
    "x-forwarded-proto": "http",
    "x-envoy-external-address": "127.0.0.1",
    "x-request-id": "66042aa5-e2f3-47ee-a79f-3db00f45d250",
}
RECEIVED = {
    ":status": "200",
    "date": "Sun, 22 Nov 2026 09:03:47 GMT",
    "server": "uvicorn",
    "x-envoy-upstream-service-time": "1",
}
ANSWER = (
    b'{"id":"chatcmpl-9b1f0d1a1f6c4a3a","object":"chat.completion","created":1732000000,"model":"m","choices":[{"index"'
    b':0,"message":{"role":"assistant","content":"Hello there, how are you doing today? I am fine.","tool_calls":[]},'
    b'"logprobs":null,"finish_reason":"stop","stop_reason":null}],"usage":{"prompt_tokens":12,"total_tokens":30,'
    b'"completion_tokens":18,"prompt_tokens_details":null},"prompt_logprobs":null}'
)
EVENT = (
    b'data: {"id":"chatcmpl-9b1f0d1a1f6c4a3a","object":"chat.completion.chunk","created":1732000000,"model":"m",'
    b'"choices":[{"index":0,"delta":{"content":" word"},"logprobs":null,"finish_reason":null}]}\n\n'
)
Exchange = Sequence[bytes]
"""Serialised messages of one stream."""


class Decided(Director):
    """A director with a fixed decision: every request goes to the endpoint of the first one."""

    def __init__(self) -> None:
        clock = SystemClock()
        store = Datastore(clock)
        store.replace([Endpoint("a", "10.0.0.1", 8000)])
        pipeline = assemble(llm_d_default(), Builder(Registry(), clock)).pipeline
        observer = DirectorObserver()
        super().__init__(Runtime(store, clock, observer), pipeline)
        body = b'{"model":"m","messages":[{"role":"user","content":"hello"}]}'
        first = super().route(Headers([(":path", SENT[":path"])]), body, None)
        assert isinstance(first, Routing)

        def again(headers: Headers) -> Routing:
            first.request.headers = headers
            return Routing(
                first.request,
                first.result,
                store.ledger.open(0),
                pipeline,
                guard=guard,
                observer=observer,
                find=store.find,
                outliers=outliers,
            )

        guard, outliers = Guard(observer), OutlierDetector(store, clock)
        self._again = again

    def route(self, headers: Headers, *_: object, **__: object) -> Routing:
        """Credit the endpoint."""
        return self._again(headers)


def headers(fields: dict[str, str], *, end: bool = False) -> HttpHeaders:
    values = [HeaderValue(key=key, raw_value=value.encode()) for key, value in fields.items()]
    return HttpHeaders(headers=HeaderMap(headers=values), end_of_stream=end)


def chosen() -> Metadata:
    """Attributes that Envoy sends with a response."""
    metadata = Metadata()
    metadata.filter_metadata["envoy.lb"].update({"x-gateway-destination-endpoint": "10.0.0.1:8000"})
    return metadata


def requested(*bodies: bytes, mode: int = FULL_DUPLEX_STREAMED, response: int = FULL_DUPLEX_STREAMED) -> Exchange:
    """Return the request half, with these pieces of the body."""
    modes = ProtocolConfiguration(request_body_mode=mode, response_body_mode=response)  # type: ignore[arg-type]
    fields = SENT | {"content-length": str(sum(map(len, bodies)))}
    messages = [ProcessingRequest(request_headers=headers(fields), protocol_config=modes)]
    messages += [
        ProcessingRequest(request_body=HttpBody(body=body, end_of_stream=number == len(bodies)))
        for number, body in enumerate(bodies, 1)
    ]
    for message in messages:
        message.metadata_context.SetInParent()
    return [message.SerializeToString() for message in messages]


def answered(*bodies: bytes, kind: str = "application/json", trailers: bool = False) -> Exchange:
    """Return the response half, with these pieces of the body and without a length."""
    fields = RECEIVED | {"content-type": kind}
    messages = [ProcessingRequest(response_headers=headers(fields))]
    messages += [
        ProcessingRequest(response_body=HttpBody(body=body, end_of_stream=number == len(bodies) and not trailers))
        for number, body in enumerate(bodies, 1)
    ]
    if trailers:
        messages.append(ProcessingRequest(response_trailers=HttpTrailers()))
    for message in messages:
        message.metadata_context.CopyFrom(chosen())
    return [message.SerializeToString() for message in messages]


def prompt(size: int) -> bytes:
    text = "".join(f"{number:07d} " for number in range(size // 8))
    return b'{"model":"m","stream":true,"messages":[{"role":"user","content":"%s"}]}' % text.encode()


def player() -> Callable[[Exchange], None]:
    """Return a function that plays an exchange."""
    director, settings, traits = Decided(), ExchangeSettings(), GatewayTraits()
    budgets = Budgets(BudgetSettings())

    def play(exchange: Exchange) -> None:
        claim = Claim(budgets, budgets.gathered.account())
        session = Session(director, settings, traits, claim)
        for message in exchange:
            session.receive(decode(message))
        session.close()
        claim.close()

    return play


def cases() -> dict[str, tuple[Exchange, Exchange, int]]:
    """Return by row: an exchange, another whose cost is subtracted, and the divisor of the difference."""
    small, events = prompt(400), [EVENT] * 200
    sse = "text/event-stream"
    streamed = requested(small, mode=BUFFERED, response=STREAMED)
    request = requested(small, b"")
    large = prompt(1_000_000)  # a MiB is joined in several steps
    one, many = [EVENT, b""], [*events, EVENT, b""]
    return {
        "session": ([*request, *answered(ANSWER, b"")], (), 1),
        "session-streamed": ([*streamed, *answered(ANSWER, b"")], (), 1),
        "session-piece": ([*request, *answered(*many, kind=sse)], [*request, *answered(*one, kind=sse)], 200),
        "session-64k": ([*requested(prompt(65536), b""), *answered(ANSWER, b"")], (), 1),
        "session-1m": ([*requested(large[:999_000], large[999_000:], b""), *answered(ANSWER, b"")], (), 1),
    }


def cost(play: Callable[[Exchange], None], exchange: Exchange, plays: int) -> float:
    started = time.process_time()
    for _ in range(plays):
        play(exchange)
    return (time.process_time() - started) / plays * 1e6


def main() -> None:
    """Print the figures: the minimum of several rounds for each case."""
    no_log_lines()
    rounds = 3 if quick() else 15
    play = player()
    figures = {}
    for row, (exchange, without, share) in cases().items():
        plays = max(5, 100_000 // (len(exchange) + sum(map(len, exchange)) // 500) // 20)
        play(exchange)
        least = min(cost(play, exchange, plays) for _ in range(rounds))
        deducted = min(cost(play, without, plays) for _ in range(rounds)) if without else 0.0
        figures[row] = (least - deducted) / share
    tell(figures)


if __name__ == "__main__":
    main()
