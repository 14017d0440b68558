# SPDX-License-Identifier: Apache-2.0
"""Measurement of a model server through its API."""

import asyncio
import random
import re
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import aiohttp
import msgspec

from epp.lab.sim.fit import Answer, Batch, Probe
from epp.lab.sim.profile import SimProfile

_LENGTHS = (64, 256, 512, 1024, 1536, 2048)
_SIZES = (1, 2, 4, 8, 16, 32)
_DECODE_PROMPT = 32
_DECODE_OUTPUT = 16
_ROUNDS = 5
_HELD_OUT = 8
_FIT_SHARE = 0.7
"""Share of the budget for requests that the profile is fitted to."""
_SLOW_PROMPT_SHARE = 0.03
"""Longer prompts are not measured once a prompt takes this share of the budget."""
_SLOW_BATCH_SHARE = 0.15
"""Larger batches are not measured once a batch takes this share of the budget."""
_TOKEN_IDS = range(20, 120)
"""Ids that every vocabulary has and that are usually not special tokens."""
_CONNECT_SECONDS = 5.0
_PAGE_SECONDS = 10.0
_MOST_PAGE_BYTES = 8 * 2**20
_MOST_STREAM_BYTES = 4 * 2**20
_LABEL = re.compile(r'(\w+)="([^"]*)"')
_OK = 200


class Facts(NamedTuple):
    """Facts that a server reports; None if it does not."""

    max_model_len: int | None = None
    num_gpu_blocks: int | None = None
    block_size: int | None = None


class Calibration:
    """Measurements of a server, collected by `run`."""

    def __init__(
        self,
        server: "HttpServer",
        *,
        budget: float,
        clock: Callable[[], float] = time.monotonic,
        progress: Callable[[float], None] = lambda _: None,
        seed: int | None = None,
    ) -> None:
        """`budget` is the time limit in seconds; `progress` receives the used share of it."""
        self.facts = Facts()
        self.prefills: list[Batch] = []
        self.decodes: list[Batch] = []
        self.hits: list[tuple[Answer, Answer]] = []
        """Answers to a new prompt, and to the same prompt again."""
        self.held_out: list[Batch] = []
        self.requests = 0
        self.busy = 0
        """Number of batches that were sent while the server had other requests."""
        self._server = server
        self._budget = budget
        self._clock = clock
        self._progress = progress
        self._chance = random.Random(seed)  # noqa: S311  not for secrets
        self._begin = clock()

    async def run(self) -> None:
        """Measure until all batches are sent or the budget is used up; raises ServerError.

        The clock is checked between batches only: the caller must end a batch that hangs.
        """
        self.facts = await self._server.facts()
        most = self._most_tokens = self.facts.max_model_len or SimProfile().max_model_len
        fitting = [length for length in _LENGTHS if length <= 0.9 * most]
        self._lengths = fitting if len(fitting) > 1 else [max(most // 4, 1), max(most // 2, 1)]
        self._decode_prompt = min(_DECODE_PROMPT, self._lengths[0])
        self._output = max(min(_DECODE_OUTPUT, most // 4), 1)
        await self._send(self._probe(self._lengths[0], self._output))  # warm-up: may load or compile something
        for _round in range(_ROUNDS):
            await self._measure_lengths()
            await self._measure_sizes()
            if not self._is_over(_FIT_SHARE):
                probe = self._probe(self._lengths[-1], 1)
                (fresh,), _ = await self._send(probe)
                (again,), _ = await self._send(probe)
                self.hits.append((fresh, again))
        await self._hold_out()

    async def _measure_lengths(self) -> None:
        """Measure the time to the first token of single requests."""
        for count, length in enumerate(self._lengths, 1):
            if self._is_over(_FIT_SHARE):
                return
            batch, seconds = await self._send(self._probe(length, 1))
            self.prefills.append(batch)
            if seconds > _SLOW_PROMPT_SHARE * self._budget:
                self._lengths = self._lengths[: max(count, 2)]
                if count > 1:
                    return

    async def _measure_sizes(self) -> None:
        """Measure the time between tokens in batches, until the requests of a batch do not all run together."""
        for size in _SIZES:
            if self._is_over(_FIT_SHARE):
                return
            batch, seconds = await self._send(*self._probes(size, lambda: self._decode_prompt))
            self.decodes.append(batch)
            end = min(answer.token_seconds[-1] for answer in batch)
            waited = size > 1 and any(answer.token_seconds[0] >= end for answer in batch)
            if waited or seconds > _SLOW_BATCH_SHARE * self._budget:
                return

    async def _hold_out(self) -> None:
        """Send batches of the measured sizes with mixed lengths."""
        sizes = sorted({len(batch) for batch in self.decodes}) or [1]
        for number in range(_HELD_OUT):
            if self._is_over(1.0):
                return
            size = sizes[number % len(sizes)]
            low, high = self._lengths[0], max(self._lengths[-1] // max(size // 2, 1), self._lengths[0])
            batch, _ = await self._send(*self._probes(size, lambda: self._chance.randint(low, high)))  # noqa: B023
            self.held_out.append(batch)

    def _probe(self, length: int, output: int) -> Probe:
        length = max(min(length, self._most_tokens - output), 1)
        return Probe(tuple(self._chance.choices(_TOKEN_IDS, k=length)), output)

    def _probes(self, size: int, length: Callable[[], int]) -> list[Probe]:
        return [self._probe(length(), self._output) for _ in range(size)]

    def _is_over(self, share: float) -> bool:
        return self._clock() - self._begin >= share * self._budget

    async def _send(self, *probes: Probe) -> tuple[Batch, float]:
        self.busy += bool(await self._server.requests())
        sent = self._clock()
        batch = await self._server.send(probes)
        self.requests += len(probes)
        self._progress(min((self._clock() - self._begin) / self._budget, 1.0))
        return batch, self._clock() - sent


class ServerError(Exception):
    """The server cannot be reached, refuses a request, or sends an unexpected response."""


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int
    prompt_tokens_details: _Details | None = None


class _Choice(msgspec.Struct):
    text: str = ""
    finish_reason: str | None = None


class _Event(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None


class _Model(msgspec.Struct):
    id: str
    max_model_len: int | None = None


class _Models(msgspec.Struct):
    data: list[_Model]


class HttpServer:
    """Client of the measured server; `remarks` are the anomalies of its responses, without duplicates."""

    def __init__(self, session: aiohttp.ClientSession, url: str, model: str) -> None:
        self._session = session
        self._url = url.rstrip("/")
        self._model = model
        self.remarks: dict[str, None] = {}

    async def facts(self) -> Facts:
        """Return the facts that the server reports; raises ServerError."""
        try:
            models = msgspec.json.decode(await self._get("/v1/models"), type=_Models).data
        except msgspec.DecodeError as error:
            raise ServerError(f"{self._url}/v1/models is not a list of models: {error}") from error
        found = next((model for model in models if model.id == self._model), None)
        if found is None:
            names = ", ".join(model.id[:100] for model in models[:10])
            raise ServerError(f"{self._url} does not serve --model {self._model!r}: name one of {names}")
        cache = next((dict(_LABEL.findall(line)) for line in await self._metrics("cache_config_info")), {})
        blocks, size = (
            int(text) if (text := cache.get(key, "")).isdecimal() else None for key in ("num_gpu_blocks", "block_size")
        )
        return Facts(found.max_model_len, blocks or None, size or None)

    async def requests(self) -> int | None:
        """Return the number of running and waiting requests; None if the server does not report it."""
        lines = await self._metrics("num_requests_running", "num_requests_waiting")
        try:
            return int(sum(float(line.rpartition(" ")[2]) for line in lines)) if lines else None
        except ValueError:
            return None

    async def send(self, probes: Sequence[Probe]) -> list[Answer]:
        """Send requests at the same time and return their answers; raises ServerError."""
        begin = time.perf_counter()
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._send(probe, begin)) for probe in probes]
        except* ServerError as errors:
            raise errors.exceptions[0] from None
        return [task.result() for task in tasks]

    async def _send(self, probe: Probe, begin: float) -> Answer:
        body = {
            "model": self._model,
            "prompt": list(probe.prompt),
            "max_tokens": probe.output_tokens,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        times: list[float] = []
        usage: _Usage | None = None
        size = 0
        try:
            async with self._session.post(f"{self._url}/v1/completions", json=body) as response:
                if response.status != _OK:
                    reason = (await response.content.read(300)).decode(errors="replace")
                    raise ServerError(f"{self._url} answers {response.status} to a request: {reason}")
                async for line in response.content:
                    size += len(line)
                    if size > _MOST_STREAM_BYTES or len(times) > 2 * probe.output_tokens:
                        raise ServerError(
                            f"{self._url} ignores max_tokens: it sends more than {probe.output_tokens} tokens"
                        )
                    if not line.startswith(b"data:") or line[5:].strip() == b"[DONE]":
                        continue
                    event = msgspec.json.decode(line[5:], type=_Event)
                    usage = event.usage or usage
                    if event.choices:
                        times.append(time.perf_counter() - begin)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise ServerError(f"{self._url} fails during an answer: {str(error) or type(error).__name__}") from error
        except (msgspec.DecodeError, ValueError) as error:
            raise ServerError(
                f"{self._url} does not send events of an OpenAI completion: {str(error)[:200]}"
            ) from error
        if not times:
            raise ServerError(f"{self._url} ends an answer without a token")
        return self._answer(probe, times, usage)

    def _answer(self, probe: Probe, times: list[float], usage: _Usage | None) -> Answer:
        if usage is None:
            self._remark(
                "answers have no usage: tokens are counted as events, and hits of the prefix cache are unknown"
            )
            return Answer(len(probe.prompt), 0, tuple(times))
        if usage.completion_tokens > probe.output_tokens:
            self._remark("the server ignores max_tokens")
        if usage.completion_tokens < probe.output_tokens:
            self._remark("the server ignores ignore_eos: answers are shorter than max_tokens")
        if 1 < len(times) < usage.completion_tokens <= 2 * probe.output_tokens:  # several tokens in an event
            steps = usage.completion_tokens - 1
            times = [times[0] + (times[-1] - times[0]) * step / steps for step in range(steps + 1)]
        # A stream may end with an event without a token.
        times = times[: max(usage.completion_tokens, 1)]
        prompt = usage.prompt_tokens if 0 < usage.prompt_tokens <= 2 * len(probe.prompt) + 16 else len(probe.prompt)
        cached = (usage.prompt_tokens_details.cached_tokens if usage.prompt_tokens_details else None) or 0
        return Answer(prompt, min(max(cached, 0), prompt - 1), tuple(times))

    def _remark(self, text: str) -> None:
        self.remarks[text] = None

    async def _metrics(self, *names: str) -> list[str]:
        try:
            page = (await self._get("/metrics")).decode(errors="replace")
        except ServerError as error:
            self._remark(f"no metrics: {error}")
            return []
        starts = tuple(f"vllm:{name}{end}" for name in names for end in "{ ")
        return [line for line in page.splitlines() if line.startswith(starts)]

    async def _get(self, path: str) -> bytes:
        try:
            timeout = aiohttp.ClientTimeout(total=_PAGE_SECONDS, sock_connect=_CONNECT_SECONDS)
            async with self._session.get(self._url + path, timeout=timeout) as response:
                content = b""
                while piece := await response.content.read(_MOST_PAGE_BYTES + 1 - len(content)):
                    content += piece
                if response.status != _OK:
                    raise ServerError(f"{self._url}{path} answers {response.status}")
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            raise ServerError(f"{self._url} cannot be reached: {str(error) or type(error).__name__}") from error
        if len(content) > _MOST_PAGE_BYTES:
            raise ServerError(f"{self._url}{path} has more than {_MOST_PAGE_BYTES} bytes")
        return content
