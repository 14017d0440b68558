# SPDX-License-Identifier: Apache-2.0
"""Publishes the tokens of prompts; fetches have a time budget, a cache and a circuit breaker."""

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from enum import StrEnum
from functools import partial
from hashlib import blake2b
from secrets import token_bytes

import msgspec
from msgspec.structs import replace

from epp.framework import (
    PROMPT_TOKENS,
    Admitter,
    Candidates,
    Clock,
    DataKey,
    Producer,
    PromptTokens,
    Request,
    Stability,
)
from epp.framework.datalayer import AffectedEndpoints, Follower
from epp.framework.plugin_status import InputProblem, InputState, PluginMetric, Sample
from epp.framework.quantities import parse_duration
from epp.plugins.encoder_cache import VideoEstimate, describes_videos, with_sizes
from epp.pool.breaker import Breaker
from epp.pool.tokens.local_tokenizer import LocalTokenizer
from epp.pool.tokens.source import (
    DEFAULT_URL,
    Api,
    Estimate,
    Prompt,
    PromptRefusedError,
    SourceFailedError,
    TokenProducerParameters,
    Tokens,
    TokenSource,
)
from epp.runtime.supervisor import end

_CACHE_BYTES = 64 * 1024 * 1024
_ENTRY_BYTES = 512
"""Bytes of a cache entry in addition to its token ids."""
_KEY_BYTES = 16
_IN_FLIGHT_BYTES = 64 * 1024 * 1024
"""Most bytes of request bodies in pending fetches."""
_FAILURES = 5
"""Consecutive failures after which the source is not called for a while."""
_REST_SECONDS = 10.0
_LATE = "no answer in time"


class Result(StrEnum):
    """Origin of the token ids of a request, or the reason that it was routed without them."""

    CACHED = "cached"
    FETCHED = "fetched"
    LATE = "late"
    """The source did not answer within the budget."""
    BUSY = "busy"
    """Too many fetches were pending."""
    REFUSED = "refused"
    """The source has no tokens for this prompt."""
    FAILED = "failed"
    UNAVAILABLE = "unavailable"
    """The source had failed several times in a row, or was not open yet."""
    TOO_LARGE = "too large"


class Lookup(msgspec.Struct):
    """The token ids of one request, if known."""

    key: bytes
    tokens: Tokens | None = None
    result: Result | None = None
    """None before a fetch has ended."""


class Cache:
    """Token ids by the digest of a request, limited in bytes; the least recently used entries are dropped."""

    def __init__(self) -> None:
        self.bytes = 0
        self._found: OrderedDict[bytes, Tokens] = OrderedDict()

    def get(self, key: bytes) -> Tokens | None:
        """Return the tokens, and mark them as used."""
        if key in self._found:
            self._found.move_to_end(key)
        return self._found.get(key)

    def put(self, key: bytes, tokens: Tokens) -> None:
        self.drop(key)
        self._found[key] = tokens
        self.bytes += _size(tokens)
        while self.bytes > _CACHE_BYTES:
            self.drop(next(iter(self._found)))

    def drop(self, key: bytes) -> None:
        if (tokens := self._found.pop(key, None)) is not None:
            self.bytes -= _size(tokens)


class Fetches:
    """Fetches token ids from one source; a request waits for them until its budget is used up."""

    def __init__(self, source: TokenSource, clock: Clock, budget_seconds: float) -> None:
        self.results: Counter[Result] = Counter(dict.fromkeys(Result, 0))
        self.breaker = Breaker(_FAILURES, self._log_change, clock=clock, rest_seconds=_REST_SECONDS)
        self.cache = Cache()
        self.source = source
        self._budget = budget_seconds
        self._secret = token_bytes(_KEY_BYTES)
        self._tasks: dict[bytes, asyncio.Task[Tokens | Result]] = {}
        self._in_flight_bytes = 0
        self._is_open = False

    async def run(self) -> None:
        """Allow fetches until cancelled."""
        async with self.source.opened():
            try:
                await self.source.prepare()
            except (SourceFailedError, TimeoutError) as error:
                self.breaker.failed(str(error) or _LATE, _FAILURES)
            self._is_open = True
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                self._is_open = False
                await end(self._tasks.values())

    def look_up(self, api: Api, content: bytes, *, dry_run: bool = False) -> Lookup:
        """Return the tokens of a request if the cache has them."""
        if len(content) > self.source.most_bytes:
            return self._settled(Lookup(b""), Result.TOO_LARGE, count=not dry_run)
        key = blake2b(content, digest_size=_KEY_BYTES, key=self._secret, person=api.name.encode()).digest()
        found = self.cache.get(key)
        if found is None:
            return Lookup(key)
        return self._settled(Lookup(key, found), Result.CACHED, count=not dry_run)

    def fetch(self, lookup: Lookup, api: Api, content: bytes, *, has_media: bool) -> Awaitable[None] | None:
        """Start a fetch; the awaitable ends with it or with the budget. Return None if no fetch may start."""
        task = self._tasks.get(lookup.key)
        if task is None:
            size = self._in_flight_bytes + len(content)
            if len(self._tasks) >= self.source.most_fetches or size > _IN_FLIGHT_BYTES:
                self._settled(lookup, Result.BUSY)
                return None
            if not self._is_open or not self.breaker.allows():
                self._settled(lookup, Result.UNAVAILABLE)
                return None
            task = asyncio.create_task(self._fetched(Prompt(api, content, lookup.key, has_media)))
            self._tasks[lookup.key], self._in_flight_bytes = task, size
            task.add_done_callback(partial(self._ended, lookup.key, len(content)))
        return asyncio.ensure_future(self._within_budget(lookup, task))

    async def _within_budget(self, lookup: Lookup, task: asyncio.Task[Tokens | Result]) -> None:
        await asyncio.wait((task,), timeout=self._budget)
        if not task.done():
            self._settled(lookup, Result.LATE)
        elif task.cancelled():
            self._settled(lookup, Result.UNAVAILABLE)
        elif isinstance(found := task.result(), Result):
            self._settled(lookup, found)
        else:
            lookup.tokens = found
            self._settled(lookup, Result.FETCHED)

    def _ended(self, key: bytes, size: int, _task: asyncio.Task[Tokens | Result]) -> None:
        del self._tasks[key]
        self._in_flight_bytes -= size

    async def _fetched(self, prompt: Prompt) -> Tokens | Result:
        try:
            tokens = await self.source.fetch(prompt)
        except PromptRefusedError:
            self.breaker.succeeded()
            return Result.REFUSED
        except (SourceFailedError, TimeoutError) as error:
            self.breaker.failed(str(error) or _LATE)
            return Result.FAILED
        except asyncio.CancelledError:
            self.breaker.cancelled()
            raise
        except Exception as error:  # noqa: BLE001  raised by a library; its text may contain a part of the prompt
            self.breaker.failed(type(error).__name__)
            return Result.FAILED
        self.breaker.succeeded()
        self.cache.put(prompt.key, tokens)
        return tokens

    def _log_change(self) -> None:
        effect = "prompts in text are routed without token ids"
        self.breaker.log_change("the source of token ids", effect, self.source.name)

    def _settled(self, lookup: Lookup, result: Result, *, count: bool = True) -> Lookup:
        lookup.result = result
        self.results[result] += count
        return lookup


def _size(tokens: Tokens) -> int:
    return _ENTRY_BYTES + tokens.ids.nbytes + 8 * len(tokens.ends) + _ENTRY_BYTES * len(tokens.media)


_LOOKUPS = PluginMetric(
    "prompt_token_lookups", "Prompts whose token ids were looked up, by result.", ("result",), is_counter=True
)
_CACHE_SIZE = PluginMetric("prompt_token_cache_bytes", "Size of the cache of token ids.")
_UNAVAILABLE = PluginMetric(
    "prompt_token_source_unavailable", "1 while the source of token ids is not called, since it failed."
)


class TokenProducer(
    Producer[TokenProducerParameters], Admitter[TokenProducerParameters], Follower[TokenProducerParameters]
):
    """Publishes the tokens of a prompt: their number, and with `vllm`, `udsTokenizerConfig` or `tokenizer` their ids.

    The estimate is four bytes per token; the rules in `estimate` apply to images and videos. The prompt is published
    with placeholders of that size, for the blocks of the prefix cache. The request headers
    `x-llm-d-video-duration-seconds`, `x-llm-d-video-fps` and `x-llm-d-video-resolution` describe its videos.

    Completions, chats and, with `vllm`, Anthropic messages get the same token ids as in the engine. A request waits for
    the ids for at most `budget`, and is then routed with the estimate; ids that arrive later are kept for the next
    request with the same body. A source that fails five times in a row is not called for ten seconds. Prompts that
    consist of token ids are not looked up.
    """

    plugin_type = "token-producer"
    metrics = (_LOOKUPS, _CACHE_SIZE, _UNAVAILABLE)

    @property
    def warnings(self) -> Sequence[str]:
        source = None if self._fetches is None else self._fetches.source
        if isinstance(source, LocalTokenizer) and source.template is None:
            return (f"{source.name} has no chat template: tokens of chats are estimated; set chatTemplatePath",)
        if self.parameters.service is None or self.parameters.vllm is not None:
            return ()
        remedy = "write vllm: {url: ...} for another server, or estimate: {} for no server"
        return (f"with modelName only, token ids are requested from a vLLM server at {DEFAULT_URL}: {remedy}",)

    def setup(self) -> None:
        # The default producer is the plugin that has its type as name.
        self._key = PROMPT_TOKENS.produced_by("" if self.name == self.plugin_type else self.name)
        self._lookup_key: DataKey[Lookup] = DataKey("token-lookup", self.plugin_type, self.name)
        self.writes = (self._key,)
        self._estimate = self.parameters.estimate or Estimate()
        source = self._source()
        self.reads_content = source is not None
        self._fetches = None if source is None else Fetches(source, self.clock, parse_duration(self.parameters.budget))

    def _source(self) -> TokenSource | None:
        service, file = self.parameters.service, self.parameters.tokenizer
        if file is not None:
            return LocalTokenizer(file)
        if (uds := self.parameters.uds_tokenizer_config) is not None:
            from epp.pool.tokens.uds_tokenizer import UdsTokenizer  # noqa: PLC0415  imports a gRPC client

            return UdsTokenizer(uds, self.parameters.model_name)
        if service is None:
            return None
        from epp.pool.tokens.render_service import RenderService  # noqa: PLC0415  imports an HTTP client

        return RenderService(service, self.parameters.model_name)

    async def follow(self, changed: Callable[[AffectedEndpoints], None]) -> None:  # noqa: ARG002  no tags
        if self._fetches is not None:
            await self._fetches.run()

    def produce(self, request: Request, candidates: Candidates) -> None:  # noqa: ARG002  as the role calls it
        """Publish the token ids if they are known, or else an estimate."""
        counted = self._estimated(request)
        lookup = request.get(self._lookup_key) or self._looked_up(request)
        if lookup is not None and (tokens := lookup.tokens) is not None:
            counted = replace(
                counted, count=tokens.total, exact=True, ids=tokens.ids, ends=tokens.ends, media=tokens.media
            )
        elif lookup is not None:
            counted = replace(counted, no_ids=lookup.result or "")
        request.put(self._key, counted)

    def admit(self, request: Request, candidates: Candidates) -> Awaitable[None] | None:
        """Hold the request until its token ids arrive, or the budget is used up."""
        lookup, api = request.get(self._lookup_key), Api.of(request.path)
        if self._fetches is None or lookup is None or api is None or lookup.result is not None or request.dry_run:
            return None
        held = self._fetches.fetch(lookup, api, request.content, has_media=bool(request.body.media_items))
        if held is None:
            self.produce(request, candidates)  # it does not run again
        return held

    @property
    def inputs(self) -> InputState:
        if self._fetches is None or not (problem := self._fetches.breaker.problem):
            return InputState()
        return InputState((InputProblem(self._fetches.source.name, reason=f"no token ids of prompts: {problem}"),))

    @property
    def samples(self) -> Sequence[Sample]:
        if self._fetches is None:
            return ()
        return (
            Sample(_CACHE_SIZE, self._fetches.cache.bytes),
            Sample(_UNAVAILABLE, bool(self._fetches.breaker.problem)),
            *(Sample(_LOOKUPS, count, (result.value,)) for result, count in self._fetches.results.items()),
        )

    def _looked_up(self, request: Request) -> Lookup | None:
        """Look the request up in the cache, once; return None if it has no text to look up."""
        api = Api.of(request.path)
        if self._fetches is None or api is None or not request.content or request.body.is_token_ids:
            return None
        lookup = self._fetches.look_up(api, request.content, dry_run=request.dry_run)
        request.put(self._lookup_key, lookup)
        return lookup

    def _estimated(self, request: Request) -> PromptTokens:
        """Return the number of the parser, with the sizes of media that this plugin estimates."""
        body, image, video = request.body, self._estimate.image, self._estimate.video
        if not body.media:
            return PromptTokens(body.prompt_tokens)
        if video is None and describes_videos(request.headers):
            video = VideoEstimate()
        sizes = [
            image.tokens(media)
            if image is not None and media.kind == "image"
            else video.tokens(request.headers)
            if video is not None and media.kind == "video"
            else media.tokens
            for media in body.media
        ]
        added = sum(size - media.tokens for size, media in zip(sizes, body.media, strict=True))
        if not added:
            return PromptTokens(body.prompt_tokens)
        return PromptTokens(body.prompt_tokens + added, prompt=with_sizes(body.prompt, body.media, sizes))


class DeprecatedTokenizer(TokenProducer):
    """Deprecated: the former name of `token-producer`."""

    plugin_type = "tokenizer"
    stability = Stability.DEPRECATED
