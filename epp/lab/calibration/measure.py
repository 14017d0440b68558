# SPDX-License-Identifier: Apache-2.0
"""The requests to send: prompts of several lengths, batches of several sizes, repeated prompts, held-out mixtures."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from epp.lab.calibration.fit import Answer, Batch, Probe

_LENGTHS = (64, 256, 512, 1024, 1536, 2048)
_SIZES = (1, 2, 4, 8, 16, 32)
_DECODE_PROMPT = 32
_DECODE_OUTPUT = 16
_ROUNDS = 5
_HELD_OUT = 8
_FIT_SHARE = 0.7
"""Share of the budget for requests that the profile is fitted to."""
_SLOW_PROMPT_SHARE = 0.03
"""Lengths grow no further once a prompt takes this share of the budget."""
_SLOW_BATCH_SHARE = 0.15
"""The same for sizes of batches."""
_TOKEN_IDS = range(20, 120)
"""In every vocabulary, and no usual special tokens."""


class Facts(NamedTuple):
    """The facts that a server reports; None for one that it does not report."""

    max_model_len: int | None = None
    num_gpu_blocks: int | None = None
    block_size: int | None = None


class Server(Protocol):
    """A model server that is measured."""

    async def requests(self) -> int | None:
        """Return how many requests it runs and holds; None if it does not say."""

    async def send(self, probes: Sequence[Probe]) -> list[Answer]:
        """Send requests at the same time and return their answers."""


@dataclass(slots=True)
class Measurements:
    """The measurements so far."""

    prefills: list[Batch] = field(default_factory=list)
    decodes: list[Batch] = field(default_factory=list)
    hits: list[tuple[Answer, Answer]] = field(default_factory=list)
    """Answers to a new prompt, and to the same prompt again."""
    held_out: list[Batch] = field(default_factory=list)
    requests: int = 0
    busy: int = 0
    """Batches before which the server had requests of others."""


async def measure(
    server: Server,
    found: Measurements,
    *,
    budget: float,
    max_model_len: int,
    clock: Callable[[], float],
    progress: Callable[[float], None] = lambda _: None,
    seed: int | None = None,
) -> None:
    """Add to `found` until enough is known or the budget, in seconds of `clock`, is used up.

    Raises the errors of the server. It checks the clock between batches: the caller ends a batch that hangs.
    """
    plan = _Plan(
        server,
        found,
        random.Random(seed),  # noqa: S311  no secrets
        budget=budget,
        max_model_len=max_model_len,
        clock=clock,
        progress=progress,
    )
    await plan.warm_up()
    for _ in range(_ROUNDS):
        await plan.lengths()
        await plan.sizes()
        await plan.hit()
    await plan.held_out()


class _Plan:
    """Sends the requests of each kind while there is time for it."""

    def __init__(
        self,
        server: Server,
        found: Measurements,
        chance: random.Random,
        *,
        budget: float,
        max_model_len: int,
        clock: Callable[[], float],
        progress: Callable[[float], None],
    ) -> None:
        self._server = server
        self._found = found
        self._budget = budget
        self._clock = clock
        self._progress = progress
        self._chance = chance
        self._begin = clock()
        self._most_tokens = max_model_len
        fitting = [length for length in _LENGTHS if length <= 0.9 * max_model_len]
        self._lengths = fitting if len(fitting) > 1 else [max(max_model_len // 4, 1), max(max_model_len // 2, 1)]
        self._decode_prompt = min(_DECODE_PROMPT, self._lengths[0])
        self._output = max(min(_DECODE_OUTPUT, max_model_len // 4), 1)

    async def warm_up(self) -> None:
        """Send a request that is not measured: the first may load or compile something."""
        await self._send(self._probe(self._lengths[0], self._output))

    async def lengths(self) -> None:
        """Measure the time to the first token of single requests."""
        for count, length in enumerate(self._lengths, 1):
            if self._is_over(_FIT_SHARE):
                return
            batch, seconds = await self._send(self._probe(length, 1))
            self._found.prefills.append(batch)
            if seconds > _SLOW_PROMPT_SHARE * self._budget:
                self._lengths = self._lengths[: max(count, 2)]
                if count > 1:
                    return

    async def sizes(self) -> None:
        """Measure the time between tokens in batches, up to one whose requests do not all run together."""
        for size in _SIZES:
            if self._is_over(_FIT_SHARE):
                return
            batch, seconds = await self._send(*self._probes(size, lambda: self._decode_prompt))
            self._found.decodes.append(batch)
            end = min(answer.token_seconds[-1] for answer in batch)
            waited = size > 1 and any(answer.token_seconds[0] >= end for answer in batch)
            if waited or seconds > _SLOW_BATCH_SHARE * self._budget:
                return

    async def hit(self) -> None:
        """Measure the time to the first token for a prompt, and for the same prompt again."""
        if self._is_over(_FIT_SHARE):
            return
        probe = self._probe(self._lengths[-1], 1)
        (fresh,), _ = await self._send(probe)
        (again,), _ = await self._send(probe)
        self._found.hits.append((fresh, again))

    async def held_out(self) -> None:
        """Send mixtures of lengths, in batches of sizes that were measured."""
        sizes = sorted({len(batch) for batch in self._found.decodes}) or [1]
        for number in range(_HELD_OUT):
            if self._is_over(1.0):
                return
            size = sizes[number % len(sizes)]
            low, high = self._lengths[0], max(self._lengths[-1] // max(size // 2, 1), self._lengths[0])
            batch, _ = await self._send(*self._probes(size, lambda: self._chance.randint(low, high)))  # noqa: B023
            self._found.held_out.append(batch)

    def _probe(self, length: int, output: int) -> Probe:
        length = max(min(length, self._most_tokens - output), 1)
        return Probe(tuple(self._chance.choices(_TOKEN_IDS, k=length)), output)

    def _probes(self, size: int, length: Callable[[], int]) -> list[Probe]:
        return [self._probe(length(), self._output) for _ in range(size)]

    def _is_over(self, share: float) -> bool:
        return self._clock() - self._begin >= share * self._budget

    async def _send(self, *probes: Probe) -> tuple[Batch, float]:
        self._found.busy += bool(await self._server.requests())
        sent = self._clock()
        batch = await self._server.send(probes)
        self._found.requests += len(probes)
        self._progress(min((self._clock() - self._begin) / self._budget, 1.0))
        return batch, self._clock() - sent
