# SPDX-License-Identifier: Apache-2.0
"""Publish the tokens of prompts."""

from collections.abc import Awaitable, Sequence

from msgspec.structs import replace

from epp.framework import PROMPT_TOKENS, Admitter, Candidates, DataKey, Producer, PromptTokens, Request, Stability
from epp.framework.datalayer import Follower
from epp.framework.plugin_status import InputProblem, InputState, PluginMetric, Sample
from epp.framework.quantities import parse_duration
from epp.plugins.media_sizes import VideoEstimate, describes_videos, with_sizes
from epp.pool.tokens.fetches import Fetches, Lookup
from epp.pool.tokens.local_tokenizer import LocalTokenizer
from epp.pool.tokens.parameters import DEFAULT_URL, Estimate, TokenProducerParameters
from epp.pool.tokens.source import Api, TokenSource

_LOOKUPS = PluginMetric(
    "prompt_token_lookups", "Prompts whose token ids were looked up, by result.", ("result",), is_counter=True
)
_CACHE_BYTES = PluginMetric("prompt_token_cache_bytes", "Size of the cache of token ids.")
_UNAVAILABLE = PluginMetric(
    "prompt_token_source_unavailable", "1 while the source of token ids is not asked, as it failed."
)


class TokenProducer(
    Producer[TokenProducerParameters], Admitter[TokenProducerParameters], Follower[TokenProducerParameters]
):
    """Publishes the tokens of a prompt: their number, and with `vllm`, `udsTokenizerConfig` or `tokenizer` their ids.

    The estimate is four bytes for each token, and the rules in `estimate` for images and videos; the prompt is
    published with placeholders of that size, for the blocks of the prefix cache. The request headers
    `x-llm-d-video-duration-seconds`, `x-llm-d-video-fps` and `x-llm-d-video-resolution` describe its videos.

    Completions, chats and, from vLLM, Anthropic messages have token ids, the same as in the engine. A request waits for
    the ids up to `budget`, and is then routed with the estimate; later ids are kept for the next request with the same
    body. A source that fails five times in a row is not asked for ten seconds. Prompts of token ids are not looked up.
    """

    plugin_type = "token-producer"
    metrics = (_LOOKUPS, _CACHE_BYTES, _UNAVAILABLE)

    @property
    def warnings(self) -> Sequence[str]:
        """Warnings of the server that is asked by default, and of a tokenizer that knows no chats."""
        source = None if self._fetches is None else self._fetches.source
        if isinstance(source, LocalTokenizer) and source.template is None:
            return (f"no chat template is beside {source.name}: tokens of chats are estimated; name chatTemplatePath",)
        if self.parameters.service is None or self.parameters.vllm is not None:
            return ()
        warning = (
            f"modelName alone makes the picker ask a vLLM server at {DEFAULT_URL} for token ids: write "
            "vllm: {url: ...} to name the server, or estimate: {} to ask none"
        )
        return (warning,)

    def setup(self) -> None:
        """Prepare the source; raises ValueError for a file that cannot be read."""
        # A plugin named like its type is the default producer.
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
            return LocalTokenizer(file.path, file.chat_template_path, most_bytes=file.max_bytes)
        if (uds := self.parameters.uds_tokenizer_config) is not None:
            from epp.pool.tokens.uds_tokenizer import UdsTokenizer  # noqa: PLC0415  it loads a gRPC client

            return UdsTokenizer(uds.address, uds.tokenizer(self.parameters.model_name))
        if service is None:
            return None
        from epp.pool.tokens.render_service import RenderService  # noqa: PLC0415  it loads an HTTP client

        return RenderService(
            service.url,
            self.parameters.model_name,
            timeout_seconds=parse_duration(service.timeout),
            media_timeout_seconds=parse_duration(service.mm_timeout),
        )

    async def follow(self) -> None:
        """Keep connections to the source until cancelled."""
        if self._fetches is not None:
            await self._fetches.run()

    def produce(self, request: Request, candidates: Candidates) -> None:  # noqa: ARG002  as the role calls it
        """Publish the token ids, if they are here, or else an estimate."""
        counted = self._estimated(request)
        lookup = request.get(self._lookup_key)
        if lookup is None:
            lookup = self._looked_up(request)
        if lookup is not None and lookup.tokens is None:
            counted = replace(counted, no_ids=lookup.result or "")
        elif lookup is not None and (tokens := lookup.tokens) is not None:
            counted = replace(
                counted, count=tokens.total, exact=True, ids=tokens.ids, ends=tokens.ends, media=tokens.media
            )
        request.put(self._key, counted)

    def admit(self, request: Request, candidates: Candidates) -> Awaitable[None] | None:
        """Hold the request until its token ids are here, or the budget is used up."""
        lookup, api = request.get(self._lookup_key), Api.of(request.path)
        if self._fetches is None or lookup is None or api is None or lookup.result is not None or request.dry_run:
            return None
        held = self._fetches.fetch(lookup, api, request.content, has_media=bool(request.body.media_items))
        if held is None:
            self.produce(request, candidates)  # it does not run again
        return held

    @property
    def inputs(self) -> InputState:
        """The source, while it is not asked."""
        if self._fetches is None or not (problem := self._fetches.breaker.problem):
            return InputState()
        return InputState((InputProblem(self._fetches.source.name, reason=f"no token ids of prompts: {problem}"),))

    @property
    def samples(self) -> Sequence[Sample]:
        """Results of lookups, and the state of cache and source."""
        if self._fetches is None:
            return ()
        return (
            Sample(_CACHE_BYTES, self._fetches.cache.bytes),
            Sample(_UNAVAILABLE, bool(self._fetches.breaker.problem)),
            *(Sample(_LOOKUPS, count, (result.value,)) for result, count in self._fetches.results.items()),
        )

    def _looked_up(self, request: Request) -> Lookup | None:
        """Look in the cache, once; None where there is nothing to look up."""
        api = Api.of(request.path)
        if self._fetches is None or api is None or not request.content or request.body.is_token_ids:
            return None
        lookup = self._fetches.look_up(api, request.content, dry_run=request.dry_run)
        request.put(self._lookup_key, lookup)
        return lookup

    def _estimated(self, request: Request) -> PromptTokens:
        """Return the parser's number with the sizes of media estimated by this plugin."""
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
