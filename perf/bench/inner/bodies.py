# SPDX-License-Identifier: Apache-2.0
"""Time for which bodies with very many elements block the event loop: sessions without a socket."""

import asyncio
from collections.abc import Awaitable, Sequence

import uvloop
from configs import llm_d_default
from session import headers
from timing import no_log_lines, quick, tell, turns

from epp.config import Builder, assemble
from epp.extproc.budgets import Budgets, Claim
from epp.extproc.codec import decode
from epp.extproc.exchange import ExchangeSettings, GatewayTraits
from epp.extproc.session import Session
from epp.extproc.settings import BudgetSettings
from epp.extproc.wire import FULL_DUPLEX_STREAMED, HttpBody, ProcessingRequest, ProtocolConfiguration
from epp.framework import Endpoint, SystemClock
from epp.framework.registry import Registry
from epp.plugins.parsers.json_parser import MOST_TOKEN_IDS, MOST_VALUES
from epp.routing.datastore import Datastore
from epp.routing.director import Director, PendingRequest, Runtime

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


def new_director() -> Director:
    clock = SystemClock()
    store = Datastore(clock)
    store.replace([Endpoint(f"e{number}", f"10.0.0.{number + 1}", 8000) for number in range(8)])
    return Director(Runtime(store, clock), assemble(llm_d_default(), Builder(Registry(), clock)).pipeline)


def bodies(share: float) -> dict[str, tuple[str, bytes]]:
    """Return path and body by row; the bodies have this share of their maximum size."""
    pairs, ids = int(share * MOST_VALUES / 2), int(share * MOST_TOKEN_IDS)  # a message or a part has two values
    message, part = b'{"role":"user","content":"x"},', b'{"type":"text","text":"x"},'
    return {
        "turn-messages": (CHAT, b'{"model":"m","messages":[%s]}' % (message * pairs)[:-1]),
        "turn-parts": (CHAT, b'{"model":"m","messages":[{"role":"user","content":[%s]}]}' % (part * pairs)[:-1]),
        "turn-ids": (COMPLETIONS, b'{"model":"m","prompt":[%s]}' % (b"12345," * ids)[:-1]),
    }


def messages(path: str, *sent: bytes, more: int = 0) -> Sequence[bytes]:
    """Return the request half of an exchange with additional header fields."""
    fields = {":method": "POST", ":path": path} | {f"x-{number}": "1" for number in range(more)}
    modes = ProtocolConfiguration(request_body_mode=FULL_DUPLEX_STREAMED, response_body_mode=FULL_DUPLEX_STREAMED)
    found = [ProcessingRequest(request_headers=headers(fields), protocol_config=modes)]
    for number, body in enumerate(sent, start=1):
        found.append(ProcessingRequest(request_body=HttpBody(body=body, end_of_stream=number == len(sent))))
    return [message.SerializeToString() for message in found]


async def longest(work: Awaitable[object]) -> float:
    _, turn = await turns(work)
    return turn


async def play(director: Director, exchange: Sequence[bytes]) -> None:
    """Handle the messages as a transport does, one per loop iteration."""
    budgets = Budgets(BudgetSettings())
    claim = Claim(budgets, budgets.gathered.account())
    session = Session(director, ExchangeSettings(), GatewayTraits(), claim)
    for message in exchange:
        await asyncio.sleep(0)
        answers = session.receive(decode(message))
        for answer in answers:
            if isinstance(answer, PendingRequest):
                await answer.settle()
                answers = session.resume()
    assert answers
    session.close()


async def main() -> None:
    """Print the figures: the minimum of several rounds for each body."""
    no_log_lines()
    few = quick()
    director, figures = new_director(), {}
    for row, (path, body) in bodies(0.1 if few else 0.99).items():
        exchange = messages(path, body)
        figures[row] = min([await longest(play(director, exchange)) for _ in range(1 if few else 5)])
    exchange = messages(CHAT, more=100_000)
    figures["turn-headers"] = min([await longest(play(director, exchange)) for _ in range(1 if few else 5)])
    tell(figures)


if __name__ == "__main__":
    uvloop.run(main())
