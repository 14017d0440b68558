# SPDX-License-Identifier: Apache-2.0
"""Long pieces of responses: read in slices, with the same outcome as at once, in each body mode."""

import asyncio
import json

import pytest

from epp.extproc.response_half import slice_bytes, slices
from epp.routing.director import Cause, PendingRequest
from tests.support.exchanges import common, in_modes, request_headers, response_body, response_headers, streamed

USAGE = b'{"usage":{"prompt_tokens":7,"completion_tokens":9},'
TEXT = USAGE + b'"model":"other","x":"' + b"x" * 200_000 + b'"}'
DENSE = USAGE + b'"x":[' + b"[]," * 20_000 + b'0],"model":"other"}'
LINES = b'data: {"model":"other","usage":{"prompt_tokens":7,"completion_tokens":9}}\n\n' + b"\n" * 20_000


def completing(bench):
    """Return the usages of the requests that are complete."""
    usages = []
    bench.endings.completed = lambda routing, cause: usages.append((cause, routing.usage))
    return usages


def routed(bench, mode, kind, **headers):
    session = bench.routed(in_modes(request_headers(**headers), "BUFFERED", mode))
    session.receive(response_headers(**{"content-type": kind}))
    return session


def body_of(replies, mode):
    if mode == "FULL_DUPLEX_STREAMED":
        body, ends = streamed(replies, "response_body")
        assert ends == [False] * (len(ends) - 1) + [True]
        return body
    (reply,) = replies
    return common(reply).body_mutation.body


@pytest.mark.parametrize("mode", ["FULL_DUPLEX_STREAMED", "STREAMED", "BUFFERED"])
@pytest.mark.parametrize(("body", "kind"), [(TEXT, "json"), (DENSE, "json"), (LINES, "event-stream")])
@pytest.mark.parametrize("rewritten", [False, True])
def test_long_piece_is_answered_once_it_has_been_read_in_slices(bench, mode, body, kind, rewritten):
    usages = completing(bench)
    rewrite = {"x-llm-d-model-name-rewrite": "other"} if rewritten else {}
    session = routed(bench, mode, f"text/{kind}", **rewrite)
    (held,) = session.receive(response_body(body, end=True))
    assert isinstance(held, PendingRequest)
    assert not session.done
    assert usages == []
    asyncio.run(held.settle())
    found = body_of(session.resume(), mode)
    assert session.done
    ((cause, usage),) = usages
    assert (cause, usage.prompt_tokens, usage.completion_tokens) == (Cause.NATURAL, 7, 9)
    if rewritten:
        assert found == body.replace(b'"model":"other"', b'"model":"m"')
    else:
        assert found == (body if mode == "FULL_DUPLEX_STREAMED" else b"")


def test_client_that_leaves_while_a_piece_is_read_is_recorded_once(bench):
    session = routed(bench, "STREAMED", "application/json")

    async def leave():
        (held,) = session.receive(response_body(DENSE, end=True))
        settling = asyncio.create_task(held.settle())
        await asyncio.sleep(0)
        settling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await settling

    asyncio.run(leave())
    session.close()
    assert bench.endings.causes == [Cause.CLIENT_DISCONNECT]
    assert bench.in_flight == 0


def test_piece_that_nobody_reads_is_passed_at_once(bench):
    session = bench.routed(request_headers("/v1/chat/completions/render"))
    replies = session.receive(response_headers(), response_body(DENSE, end=True))
    assert not any(isinstance(reply, PendingRequest) for reply in replies)


@pytest.mark.parametrize(
    ("piece", "size"),
    [
        (b"\n" * 8192, 0),
        (b"\n" * 8193, 8192),
        (b"[],{" * 5000, 8192),
        (b"x" * 65_536, 0),
        (b"x" * 65_537, 32_768),
        (json.dumps({"embedding": [0.123456] * 5000}).encode(), 0),
        (b'data: {"choices":[{"index":0,"delta":{"content":" word"},"finish_reason":null}]}\n\n' * 200, 0),
    ],
)
def test_slices_are_small_where_lines_or_brackets_are_many(piece, size):
    assert slice_bytes(piece) == size
    if size:
        found = list(slices(piece, size))
        assert b"".join(found) == piece
        assert max(map(len, found)) == size
