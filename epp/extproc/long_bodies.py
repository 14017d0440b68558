# SPDX-License-Identifier: Apache-2.0
"""Long request bodies whose answer, which has all of their bytes again, is made in several turns of the event loop."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TypeAlias

from epp.extproc import replies
from epp.framework import RequestError
from epp.framework.steps import Steps, Text, joined_slices
from epp.routing.bodies import long_with_model, long_with_model_added
from epp.routing.director import Gathered, PendingRequest, Routing, in_turns

LONG_BYTES = 1024 * 1024
"""A body that takes a millisecond to be copied a few times."""
Around: TypeAlias = Callable[[Routing, int], tuple[bytes, bytes]]
"""What goes before and after a changed body of this size, where it goes in one."""
_SLICE_BYTES = 16 * replies.PIECE_BYTES


class LongBody:
    """Takes its turns between the routing of a held request and the answer to the gateway."""

    __slots__ = ("_around", "_end_of_stream", "_error", "_gathered", "_incomplete", "_parts", "_replies")

    def __init__(self, gathered: Gathered, around: Around, *, incomplete: bool, end_of_stream: bool | None) -> None:
        """`end_of_stream` is for the last of the pieces in which it goes back; None where it goes back in one."""
        self._around = around
        self._gathered = gathered
        self._incomplete = incomplete
        self._end_of_stream = end_of_stream
        self._parts: list[Text] = []
        self._replies: list[bytes] = []
        self._error: RequestError | None = None

    def after(self, held: PendingRequest) -> PendingRequest:
        """Return what is to be settled in place of a request, and settles that first."""
        return PendingRequest(partial(self._proceed, held), held.abandon, longest_seconds=held.longest_seconds)

    @property
    def is_changed(self) -> bool:
        """Whether the endpoint is sent another body than the client's."""
        return len(self._parts) != 1

    def size(self) -> int:
        """Return the number of bytes that the endpoint is sent; raises a RequestError where its model cannot be set."""
        if self._error is not None:
            raise self._error
        return sum(map(len, self._parts))

    def replies(self) -> list[bytes]:
        """Return the replies with the body: in pieces, or whole with the destination if it was changed."""
        return self._replies

    async def _proceed(self, held: PendingRequest) -> Routing:
        await held.settle()
        routing = held.routing()
        try:
            await in_turns(self._make(routing))
        except RequestError as error:
            self._error = error
        except asyncio.CancelledError:
            held.abandon()
            raise
        return routing

    def _make(self, routing: Routing) -> Steps[None]:
        request, body = routing.request, self._gathered.body
        self._parts = [body]
        if request.rewrites_model and not request.body.model:
            self._parts = yield from long_with_model_added(body, request.model)
        elif request.rewrites_model:
            self._parts = yield from long_with_model(body, request.model, partial=self._incomplete)
        if self._end_of_stream is not None:
            yield from self._cut(end_of_stream=self._end_of_stream)
        elif self.is_changed:
            before, after = self._around(routing, self.size())
            self._replies = [(yield from joined_slices([before, *self._parts, after]))]

    def _cut(self, *, end_of_stream: bool) -> Steps[None]:
        """Make the replies: each but the last is of the full size, whatever the parts are."""
        block, left = [], _SLICE_BYTES
        for number, part in enumerate(self._parts, start=1):
            view = memoryview(part)
            while view:
                block.append(view[:left])
                view = view[left:]
                left -= len(block[-1])
                is_last = number == len(self._parts) and not view
                if not left or is_last:
                    self._replies += replies.request_body_pieces(
                        b"".join(block), end_of_stream=end_of_stream and is_last
                    )
                    block, left = [], _SLICE_BYTES
                    yield None
