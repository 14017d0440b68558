# SPDX-License-Identifier: Apache-2.0
"""A model server with the OpenAI API and vLLM's metrics, as a calibration sees it."""

import asyncio
import re
import time
from collections.abc import Sequence

import aiohttp
import msgspec

from epp.lab.calibration.fit import Answer, Probe
from epp.lab.calibration.measure import Facts

_CONNECT_SECONDS = 5.0
_PAGE_SECONDS = 10.0
_MOST_PAGE_BYTES = 8 * 2**20
_MOST_STREAM_BYTES = 4 * 2**20
_LABEL = re.compile(r'(\w+)="([^"]*)"')
_OK = 200


class ServerError(Exception):
    """The server cannot be reached, refuses a request, or answers with something else."""


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
    """Sends requests with a session; `remarks` are what is odd about the answers, each once."""

    def __init__(self, session: aiohttp.ClientSession, url: str, model: str) -> None:
        self._session = session
        self._url = url.rstrip("/")
        self._model = model
        self.remarks: dict[str, None] = {}

    async def facts(self) -> Facts:
        """Return what the server says of itself; raises ServerError."""
        try:
            models = msgspec.json.decode(await self._get("/v1/models"), type=_Models).data
        except msgspec.DecodeError as error:
            raise ServerError(f"{self._url}/v1/models is no list of models: {error}") from error
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
        """Return how many requests the server runs and holds; None if it does not say."""
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
                    said = (await response.content.read(300)).decode(errors="replace")
                    raise ServerError(f"{self._url} answers {response.status} to a request: {said}")
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
            raise ServerError(f"{self._url} sends no events of an OpenAI completion: {str(error)[:200]}") from error
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
        # An event without text may end a stream: it carries no token.
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
