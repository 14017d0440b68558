# SPDX-License-Identifier: Apache-2.0
"""Requests of a replay: with token ids for the picker, with block hashes for the engines."""

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from epp.framework import RequestBody
from epp.framework.headers import FAIRNESS_ID, METHOD, OBJECTIVE, REQUEST_ID, SESSION_ID, SLO_TPOT_MS, SLO_TTFT_MS
from epp.lab.sim.profile import SimProfile
from epp.lab.sim.work import SimRequest
from epp.lab.traces.trace import Trace, TraceRequest

_MOST_SESSIONS = 100_000
_TOKEN_BYTES = 4
_PATH = "/v1/completions"
_ODD = np.uint64(0x9E3779B97F4A7C15)
_MIX = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_OWN = np.uint64(0xD1B54A32D192ED03)
"""Separates ids of blocks that only one request has from ids in the trace."""
_BITS = 0xFFFFFFFFFFFFFFFF

Ids = NDArray[np.uint64]


class Arrival(ABC):
    at: float
    """Seconds since the start."""
    prompt_tokens: int
    output_tokens: int
    model: str
    tenant: str
    session: str
    """Session id; requests of a session send the session token of the picker."""
    headers: dict[str, str]
    body: bytes | RequestBody
    ttft_target: float | None = None
    tpot_target: float | None = None

    @abstractmethod
    def work(self, profile: SimProfile) -> SimRequest:
        """Return the work for an engine."""

    @abstractmethod
    def token_ids(self) -> NDArray[np.uint32]:
        """Return the token ids of prompt and answer; empty for a prompt as text."""


class TracedArrival(Arrival):
    """A request of a trace; `blocks` are the ids of all blocks of prompt and answer."""

    def __init__(self, number: int, request: TraceRequest, at: float, blocks: Ids, block_tokens: int) -> None:
        self.at = at
        self.prompt_tokens, self.output_tokens = request.prompt_tokens, request.output_tokens
        self.model, self.tenant, self.session = request.model, request.tenant, request.session
        self.ttft_target, self.tpot_target = request.ttft_slo, request.tpot_slo
        self._blocks = blocks
        self._block_tokens = block_tokens
        self.headers = _headers(number, request)
        prompt = tokens_of(blocks[: -(-self.prompt_tokens // block_tokens)], block_tokens)[: self.prompt_tokens]
        self.body = RequestBody(
            model=request.model or "replayed",
            prompt=prompt.astype("<u4", copy=False).tobytes(),
            prompt_tokens=request.prompt_tokens,
            streaming=True,
            is_token_ids=True,
        )

    def work(self, profile: SimProfile) -> SimRequest:
        size = profile.block_size
        last = np.arange(1, (self.prompt_tokens + self.output_tokens) // size + 1, dtype=np.int64) * size - 1
        blocks, places = np.divmod(last, self._block_tokens)
        # The hash of a full block of the engine combines the id of a block of the trace with the position in it.
        hashes = self._blocks[blocks] + places.astype(np.uint64) * _ODD
        return SimRequest(
            request_id=0,
            prompt_tokens=self.prompt_tokens,
            output_tokens=self.output_tokens,
            block_hashes=tuple(hashes.tolist()),
            lora_adapter=self.model if self.model in profile.lora_adapters else None,
        )

    def token_ids(self) -> NDArray[np.uint32]:
        return tokens_of(self._blocks, self._block_tokens)


class TraceTraffic:
    """The requests of a trace, at `rate_scale` times its rate.

    Engines cache the blocks of an answer as well. If the next prompt of the session continues the conversation, its
    blocks get the ids of the answer, so that engines find them.
    """

    def __init__(self, trace: Trace, *, rate_scale: float = 1.0, limit: int | None = None) -> None:
        self._trace = trace
        self._rate_scale = rate_scale
        self._limit = limit

    def __iter__(self) -> Iterator[TracedArrival]:
        size = self._trace.block_tokens
        sessions: OrderedDict[str, tuple[TraceRequest, Ids]] = OrderedDict()
        for number, request in enumerate(self._trace):
            if self._limit is not None and number >= self._limit:
                return
            before = sessions.pop(request.session, None)
            blocks = _blocks(number, request, size, before)
            if request.session:
                sessions[request.session] = request, blocks
                if len(sessions) > _MOST_SESSIONS:
                    sessions.popitem(last=False)
            yield TracedArrival(number, request, request.at / self._rate_scale, blocks, size)


def _headers(number: int, request: TraceRequest) -> dict[str, str]:
    headers = {METHOD: "POST", ":path": _PATH, "content-type": "application/json", REQUEST_ID: f"r{number}"}
    optional = {
        FAIRNESS_ID[0]: request.tenant,
        OBJECTIVE[0]: request.objective,
        SESSION_ID: request.session,
        SLO_TTFT_MS[0]: request.ttft_slo and f"{1000 * request.ttft_slo:g}",
        SLO_TPOT_MS[0]: request.tpot_slo and f"{1000 * request.tpot_slo:g}",
    }
    return headers | {name: text for name, text in optional.items() if text}


def _blocks(number: int, request: TraceRequest, size: int, before: tuple[TraceRequest, Ids] | None) -> Ids:
    """Return ids of all blocks of prompt and answer; a block without an id in the trace gets a unique one."""
    count = -(-(request.prompt_tokens + request.output_tokens) // size)
    own = np.arange(count, dtype=np.uint64) + np.uint64(number << 24 & _BITS)
    blocks = _mixed(own ^ _OWN)
    known = len(request.blocks)
    if not known:
        return blocks
    blocks[:known] = _mixed(np.array([block & _BITS for block in request.blocks], dtype=np.uint64))
    if before is not None:
        previous, previous_blocks = before
        shared = len(previous.blocks)
        length = previous.prompt_tokens + previous.output_tokens
        if shared <= known and request.blocks[:shared] == previous.blocks and request.prompt_tokens >= length:
            covered = min(len(previous_blocks), known)
            blocks[:covered] = previous_blocks[:covered]
    return blocks


def _mixed(ids: Ids) -> Ids:
    """Return a hash of each id (the finaliser of SplitMix64)."""
    mixed = ids + _ODD
    mixed = (mixed ^ (mixed >> np.uint64(30))) * _MIX[0]
    mixed = (mixed ^ (mixed >> np.uint64(27))) * _MIX[1]
    found: Ids = mixed ^ (mixed >> np.uint64(31))
    return found


def tokens_of(blocks: Ids, block_tokens: int) -> NDArray[np.uint32]:
    """Return the token ids of blocks; equal block ids give equal tokens."""
    places = np.arange(block_tokens, dtype=np.uint64) * _MIX[0]
    tokens: NDArray[np.uint32] = ((blocks[:, None] * _ODD + places) >> np.uint64(32)).astype(np.uint32).ravel()
    return tokens
