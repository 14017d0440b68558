# SPDX-License-Identifier: Apache-2.0
"""Generated traces: sessions of requests with lengths similar to those of published traces.

Lengths and pauses are log-normal: a median, and the standard deviation of the logarithm. They match the means of a
source that publishes means; numbers without a source are our own choice.
"""

from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from math import exp, log
from random import Random
from types import MappingProxyType
from typing import NamedTuple

from epp.lab.traces.formats import BLOCK_TOKENS
from epp.lab.traces.trace import TraceError, TraceRequest

MOST_REQUESTS = 100_000_000
MOST_OPEN_SESSIONS = 1_000_000
_CALLS_UNTIL_IDLE = 8


class Spread(NamedTuple):
    """A log-normal distribution."""

    median: float
    sigma: float

    @property
    def mean(self) -> float:
        return self.median * exp(self.sigma**2 / 2)

    def draw(self, random: Random) -> float:
        return random.lognormvariate(log(self.median), self.sigma)

    def tokens(self, random: Random) -> int:
        return max(round(self.draw(random)), 1)


_UNUSED = Spread(1, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    first: Spread
    """Tokens of the first prompt of a session, without a shared prefix."""
    output: Spread
    calls: float = 1.0
    """Mean number of requests of a session; geometric."""
    more: Spread = _UNUSED
    """Tokens that a later prompt adds to the prompt and the output before it."""
    pause: Spread = _UNUSED
    """Seconds between the requests of a session."""
    idle: Spread | None = None
    """Seconds of every eighth pause, while the user is idle."""
    burstiness: float = 1.0
    """Coefficient of variation of the times between starts of sessions; 1 for a Poisson process."""
    prefixes: int = 0
    """Number of shared prefixes, such as system prompts and tools. The nth is 1/n as frequent as the first."""
    prefix_tokens: int = 0
    prefix_share: float = 1.0
    """Share of the sessions with a shared prefix."""
    has_blocks: bool = True
    grows: bool = True
    """Whether each prompt of a session contains the previous one; otherwise, prompts share only the prefix."""
    most_tokens: int = 128_000
    """Maximum tokens of a prompt; a session ends before."""
    block_tokens: int = BLOCK_TOKENS
    objective: str = ""


WORKLOADS: Mapping[str, Workload] = MappingProxyType(
    {
        # Code completion at Azure, November 2023. Medians: about 1,500 and 13 tokens (Splitwise, ISCA 2024, section
        # III). The deviation of the output gives a mean of 23 tokens, and 9 of 10 below 51: in the trace of 2024, about
        # 23 and 49.
        "azure-code": Workload(first=Spread(1500, 0.79), output=Spread(13, 1.07), burstiness=2.0, has_blocks=False),
        # Conversations at Azure, November 2023. Medians: about 1,020 and 129 tokens (the same).
        "azure-conv": Workload(first=Spread(1020, 0.5), output=Spread(129, 0.95), has_blocks=False),
        # Tools and agents at Kimi: 8,596 tokens of prompt and 182 of output on average; samples share 12 blocks of 512
        # tokens; up to about half of the blocks are cached (Mooncake, FAST 2025, and the page of its traces).
        "mooncake": Workload(
            first=Spread(2000, 1.17),
            output=Spread(85, 1.234),
            prefixes=10,
            prefix_tokens=12 * 512,
            prefix_share=0.75,
            block_tokens=512,
        ),
        # Coding agents: 30.9 calls a session, 7.8 calls until the user speaks again, and on average 67,800 tokens of
        # prompt and 527 of output (GitHub Copilot, Azure Public Dataset, June 2026). The median call adds about 860
        # tokens (TraceLab, University of Washington, 2026). There, 86 % of the prompts were cached; here, caches do
        # not forget.
        "agents": Workload(
            first=Spread(2000, 1.0),
            more=Spread(860, 1.0),
            output=Spread(220, 1.32),
            calls=30.9,
            pause=Spread(6, 1.0),
            idle=Spread(60, 1.2),
            prefixes=5,
            prefix_tokens=10_000,
            most_tokens=200_000,
        ),
        # Jobs of about 200 prompts after one instruction, 30 a second, for the objective `batch`. All numbers are ours.
        "batch": Workload(
            first=Spread(1000, 0.7),
            more=Spread(1000, 0.7),
            output=Spread(120, 0.7),
            calls=200.0,
            pause=Spread(0.02, 1.0),
            prefixes=20,
            prefix_tokens=1536,
            grows=False,
            objective="batch",
        ),
        # Chats: 2.0 turns, and on average about 70 tokens of prompt and 215 of answer (LMSYS-Chat-1M, ICLR 2024, table
        # 1). The system prompt is our choice.
        "chat": Workload(
            first=Spread(30, 1.3),
            more=Spread(30, 1.3),
            output=Spread(130, 1.0),
            calls=2.0,
            pause=Spread(30, 1.0),
            prefixes=1,
            prefix_tokens=256,
            most_tokens=32_000,
        ),
    }
)


@dataclass(slots=True)
class _Session:
    number: int
    blocks: "array[int]"
    """Blocks of the longest prompt so far."""
    tokens: int
    """Tokens of the whole conversation."""
    calls: int = 0


@dataclass(slots=True)
class MadeTrace:
    """A generated trace of a workload. Equal seeds give equal requests; sessions are already open at its start."""

    workload: Workload
    rate: float
    seconds: float
    seed: int
    name: str = "made"
    block_tokens: int = field(init=False)

    def __post_init__(self) -> None:
        if not 0 < self.rate * self.seconds <= MOST_REQUESTS:
            raise TraceError(f"rate times duration must be above 0 and at most {MOST_REQUESTS:,} requests")
        if self.rate * self.pause > MOST_OPEN_SESSIONS:
            raise TraceError(f"the rate is too high: more than {MOST_OPEN_SESSIONS:,} sessions would be open")
        self.block_tokens = self.workload.block_tokens

    @property
    def pause(self) -> float:
        """Mean seconds between the requests of a session."""
        pause, idle = self.workload.pause.mean, self.workload.idle
        return pause if idle is None else pause + (idle.mean - pause) / _CALLS_UNTIL_IDLE

    def __iter__(self) -> Iterator[TraceRequest]:
        return _Maker(self).requests()


class _Maker:
    """One pass over a made trace."""

    def __init__(self, trace: MadeTrace) -> None:
        self._trace = trace
        self._work = work = trace.workload
        self._random = Random(trace.seed)  # noqa: S311  seeded
        self._next_block = self._next_session = 0
        self._shared = [self._new_blocks(work.prefix_tokens) for _ in range(work.prefixes)]
        self._weights = [1 / number for number in range(1, work.prefixes + 1)]

    def requests(self) -> Iterator[TraceRequest]:
        trace, work, random = self._trace, self._work, self._random
        aged = [self._aged() for _ in range(round(trace.rate * (1 - 1 / work.calls) * trace.pause))]
        due = [(self._remaining_pause(), session.number, session) for session in aged]
        heapify(due)
        shape = work.burstiness**-2
        scale = work.calls / trace.rate / shape
        start = random.gammavariate(shape, scale)
        while True:
            if not due or start < due[0][0]:
                at, session = start, self._session()
                start += random.gammavariate(shape, scale)
            else:
                at, _, session = heappop(due)
            if at >= trace.seconds:
                return
            yield self._request(at, session)
            if self._continues(session):
                heappush(due, (at + self._pause(session), session.number, session))

    def _request(self, at: float, session: _Session) -> TraceRequest:
        work = self._work
        new = (work.more if session.calls else work.first).tokens(self._random)
        prompt_tokens = min(session.tokens + new, work.most_tokens)
        output_tokens = min(work.output.tokens(self._random), work.most_tokens)
        session.calls += 1
        blocks = session.blocks
        if work.has_blocks:
            missing = self._new_blocks(prompt_tokens - len(blocks) * work.block_tokens)
            if work.grows:
                blocks.extend(missing)
            else:
                blocks = blocks + missing
        if work.grows:
            session.tokens = prompt_tokens + output_tokens
        return TraceRequest(
            at=round(at, 6),
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
            session=f"s{session.number}" if work.grows and work.calls > 1 else "",
            objective=work.objective,
            blocks=tuple(blocks),
        )

    def _session(self) -> _Session:
        work = self._work
        number = self._next_session
        self._next_session += 1
        if not self._shared or self._random.random() >= work.prefix_share:
            return _Session(number, array("Q"), 0)
        (blocks,) = self._random.choices(self._shared, self._weights)
        return _Session(number, blocks[:], work.prefix_tokens)

    def _aged(self) -> _Session:
        """Return a session that began before the trace."""
        session = self._session()
        self._request(0, session)
        while self._continues(session):
            self._request(0, session)
        return session if session.tokens < self._work.most_tokens else self._session()

    def _continues(self, session: _Session) -> bool:
        return self._random.random() >= 1 / self._work.calls and session.tokens < self._work.most_tokens

    def _pause(self, session: _Session) -> float:
        idle = self._work.idle
        pause = self._work.pause if idle is None or session.calls % _CALLS_UNTIL_IDLE else idle
        return pause.draw(self._random)

    def _remaining_pause(self) -> float:
        """Return the rest of a pause at a random moment, which is more likely to be in a long pause."""
        pause, idle, random = self._work.pause, self._work.idle, self._random
        if idle is not None and random.random() < idle.mean / _CALLS_UNTIL_IDLE / self._trace.pause:
            pause = idle
        return random.random() * Spread(pause.median * exp(pause.sigma**2), pause.sigma).draw(random)

    def _new_blocks(self, tokens: int) -> "array[int]":
        first = self._next_block
        self._next_block += max(tokens, 0) // self._work.block_tokens
        return array("Q", range(first, self._next_block))
