# SPDX-License-Identifier: Apache-2.0
"""Budgets: streams release all that they used, however they end, and buffered bytes are counted exactly."""

import tracemalloc
from collections.abc import Callable, Mapping
from types import SimpleNamespace

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from epp.extproc.budgets import Budgets, Claim, PendingStreams
from epp.extproc.exchange import ExchangeSettings, GatewayTraits
from epp.extproc.http2.limits import GRACE_SECONDS
from epp.extproc.http2.service import RpcError, Status
from epp.extproc.open_streams import SessionCall, SessionSource
from epp.extproc.session import Session
from epp.extproc.settings import BudgetSettings
from epp.extproc.wire import ProcessingRequest, ProcessingResponse
from epp.framework import ManualClock
from epp.routing.director import PendingRequest
from tests.support.exchanges import BODY, decoded, new_bench, request_body, response_headers
from tests.support.serving import first_message

GATHERED, STREAMS, PENDING = 1_000_000, 6, 4
SETTINGS = BudgetSettings(
    max_streams=STREAMS, max_pending_streams=PENDING, max_gathered_bytes=GATHERED, max_body_bytes=1
)


class Opened:
    """A stream with a session on it."""

    def __init__(self, call: SessionCall, claim: Claim) -> None:
        self.call = call
        self.account = claim.account
        self.account.on_evict = self.evict
        self.waiting = 0
        self.has_begun = self.is_complete = False
        self.is_refused = claim.lack is not None

    def receive(self, message: ProcessingRequest) -> list[ProcessingResponse | PendingRequest]:
        return decoded(self.call.receive(message.SerializeToString()))

    def evict(self) -> None:
        self.call.end_early(Status.RESOURCE_EXHAUSTED)
        self.end()

    def end(self) -> None:
        self.is_complete, self.waiting = True, 0


class Streams(RuleBasedStateMachine):
    """Streams of a few gateways, with requests in pieces."""

    streams = Bundle("streams")

    def __init__(self) -> None:
        super().__init__()
        self.bench = new_bench()
        self.now = 0.0
        self.budgets = Budgets(SETTINGS)
        self.budgets.gathered._clock = lambda: self.now  # noqa: SLF001  one that is moved by hand
        self.sessions = SessionSource(self._session, self.budgets)
        self.claims: list[Claim] = []
        self.open: list[Opened] = []

    def _session(self, traits: GatewayTraits, claim: Claim, _: Mapping[str, str]) -> Session:
        self.claims.append(claim)
        return Session(self.bench.director, ExchangeSettings(), traits, claim)

    @rule(target=streams)
    def open_one(self) -> Opened | None:
        outlet = SimpleNamespace(peer="ipv4:192.0.2.1:1234", account=self.budgets.gathered.account(), metadata={})
        try:
            call = SessionCall(self.sessions, outlet)
        except RpcError:
            assert len(self.open) >= STREAMS
            return None
        self.open.append(Opened(call, self.claims[-1]))
        return self.open[-1]

    @rule(stream=streams)
    def send_headers(self, stream: Opened | None) -> None:
        if stream is None or stream.has_begun or stream.is_complete:
            return
        stream.has_begun = True
        answers = stream.receive(first_message())
        if stream.is_refused:
            assert answers[0].immediate_response.status.code == 503
            stream.end()
        else:
            assert answers == []

    @rule(stream=streams, size=st.integers(0, 200_000), last=st.booleans())
    def send_a_piece(self, stream: Opened | None, size: int, *, last: bool) -> None:
        if stream is None or not stream.has_begun or stream.is_complete:
            return
        body = BODY if last else b" " * size
        answers = stream.receive(request_body(body, end=last))
        stream.waiting += len(body)
        if last or answers:
            stream.end()
        if answers and answers[0].HasField("immediate_response"):
            assert answers[0].immediate_response.status.code == 503
            assert not last or stream.call.done

    @rule(stream=streams)
    def time_out(self, stream: Opened | None) -> None:
        if stream is not None and not stream.is_complete and stream.has_begun:
            stream.call.end_early(Status.DEADLINE_EXCEEDED)
            stream.end()

    @rule(stream=streams)
    def respond(self, stream: Opened | None) -> None:
        if stream is not None and stream.is_complete and not stream.call.done:
            stream.receive(response_headers(end=True))

    @rule(stream=consumes(streams), is_broken=st.booleans())
    def close(self, stream: Opened | None, *, is_broken: bool) -> None:
        if stream is None:
            return
        if is_broken:
            stream.call.unreadable(RpcError(Status.INTERNAL, "the message is not readable"))
        self._close(stream)

    @rule(seconds=st.floats(0, 2 * GRACE_SECONDS))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    def _close(self, stream: Opened) -> None:
        self.open.remove(stream)
        stream.call.close()
        assert stream.account.size == 0
        stream.account.close()

    @invariant()
    def all_is_counted(self) -> None:
        budgets = self.budgets
        assert budgets.streams.used == len(self.open)
        assert budgets.pending.used == sum(not (each.is_complete or each.is_refused) for each in self.open) <= PENDING
        assert budgets.gathered.used == sum(each.waiting for each in self.open) <= GATHERED

    def teardown(self) -> None:
        for stream in list(self.open):
            self._close(stream)
        assert [each.used for each in self.budgets] == [0, 0, 0, 0]
        assert self.bench.in_flight == 0


TestStreams = Streams.TestCase


def test_body_in_tiny_pieces_takes_little_more_than_its_bytes():
    bench = new_bench()
    exchange = bench.session()
    exchange.receive(first_message())
    tracemalloc.start()
    for _ in range(20_000):
        exchange.receive(request_body(b" ", end=False))
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert taken < 100_000  # a list of pieces would take a million
    assert exchange.receive(request_body(BODY))[0].HasField("request_headers")


def pending_streams(
    limit: int, clock: ManualClock | None = None
) -> tuple[PendingStreams, Callable[..., Claim | None], list[Claim]]:
    """The streams, a function that opens one, and those that gave way."""
    budgets = Budgets(BudgetSettings(max_pending_streams=limit))
    budgets.pending._clock = (clock or ManualClock()).now  # noqa: SLF001  one that is moved by hand
    evicted: list[Claim] = []

    def open_one(gateway: str = "a") -> Claim | None:
        claim = Claim(budgets, budgets.gathered.account(), gateway)
        claim.account.on_evict = lambda: evicted.append(claim)
        return claim if claim.lack is None else None

    return budgets.pending, open_one, evicted


def test_quick_streams_beyond_the_limit_are_refused():
    pending, open_one, evicted = pending_streams(3)
    assert all(open_one() for _ in range(3))
    assert open_one() is None
    assert (pending.used, evicted) == (3, [])


def test_stream_that_stalls_longest_gives_way():
    clock = ManualClock()
    pending, open_one, evicted = pending_streams(3, clock)
    first, second, third = (open_one() for _ in range(3))
    clock.advance(0.9)
    first.progressed(20_000)
    second.progressed(1)  # is no progress
    clock.advance(0.2)
    assert open_one() is not None
    assert evicted == [second]
    assert open_one() is not None
    assert evicted == [second, third]
    assert open_one() is None  # the first has come on
    assert pending.used == 3
    assert second.evicted
    second.close()
    assert pending.used == 3


def test_gateway_that_holds_more_than_its_share_gives_way_to_another():
    _, open_one, evicted = pending_streams(4)
    held = [open_one("greedy") for _ in range(4)]
    assert open_one("greedy") is None
    assert open_one("other") is not None
    assert open_one("other") is not None
    assert evicted == held[:2]
    assert open_one("other") is None  # each has its half
