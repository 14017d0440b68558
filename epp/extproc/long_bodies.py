# SPDX-License-Identifier: Apache-2.0
"""Long request bodies whose answer, which has all of their bytes again, is made in several turns of the event loop."""

import asyncio
from functools import partial

from epp.bodies import model_spans, with_model_added, with_model_at
from epp.director import Held, Routing
from epp.extproc import replies
from epp.framework import RequestError

LONG_BYTES = 1024 * 1024
"""A body that takes a millisecond to be copied a few times."""
_SLICE_BYTES = 32 * replies.PIECE_BYTES


class LongBody:
    """Takes its turns between the routing of a held request and the answer to the gateway."""

    __slots__ = ("_body", "_end_of_stream", "_error", "_incomplete", "_pieces", "_sent")

    def __init__(self, body: bytes, *, incomplete: bool, end_of_stream: bool | None) -> None:
        """`end_of_stream` is for the last of the pieces in which it goes back; None where it goes back in one."""
        self._body = self._sent = body
        self._incomplete = incomplete
        self._end_of_stream = end_of_stream
        self._pieces: list[bytes] = []
        self._error: RequestError | None = None

    def after(self, held: Held) -> Held:
        """Return what is to be settled in place of a request, and settles that first."""
        return Held(partial(self._proceed, held), held.abandon, longest_seconds=held.longest_seconds)

    def sent(self) -> bytes:
        """Return the body with the model the endpoint is asked for; raises a RequestError where that cannot be set."""
        if self._error is not None:
            raise self._error
        return self._sent

    def pieces(self) -> list[bytes]:
        """Return the replies that hand it back."""
        return self._pieces

    async def _proceed(self, held: Held) -> Routing:
        await held.settle()
        routing = held.routing()
        try:
            await self._make(routing)
        except RequestError as error:
            self._error = error
        except asyncio.CancelledError:
            held.abandon()
            raise
        return routing

    async def _make(self, routing: Routing) -> None:
        await asyncio.sleep(0)
        request, body = routing.request, self._body
        if request.rewrites_model and not request.body.model:
            self._sent = with_model_added(body, request.model)
        elif request.rewrites_model:
            spans = model_spans(body, partial=self._incomplete)
            await asyncio.sleep(0)
            self._sent = with_model_at(spans, body, request.model)
        if self._end_of_stream is None:
            return
        sent = self._sent
        for start in range(0, len(sent), _SLICE_BYTES):
            await asyncio.sleep(0)
            end = start + _SLICE_BYTES
            is_last = self._end_of_stream and end >= len(sent)
            self._pieces += replies.request_body_pieces(sent[start:end], end_of_stream=is_last)
