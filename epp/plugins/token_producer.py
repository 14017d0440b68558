# SPDX-License-Identifier: Apache-2.0
"""Count the tokens of prompts, and of requests in flight."""

import codecs
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from epp.framework import (
    IN_FLIGHT,
    IN_FLIGHT_COST,
    IN_FLIGHT_TOKENS,
    PREFIX_MATCH,
    PROMPT_TOKENS,
    Candidates,
    Count,
    Name,
    Natural,
    NonNegative,
    Parameters,
    PreRequest,
    Producer,
    PromptTokens,
    Request,
    RequestBody,
    SchedulingResult,
    Snapshot,
    Stability,
)
from epp.framework.files import check_allowed
from epp.framework.messages import install_command
from epp.framework.plugin_status import endpoint_state
from epp.plugins.media_sizes import ImageEstimate, VideoEstimate, describes_videos, with_sizes

if TYPE_CHECKING:
    from tokenizers import Tokenizer


class Estimate(Parameters, frozen=True):
    """Estimate of four bytes for each token, and of media by their size."""

    image: ImageEstimate | None = None
    """Tokens of images; by default one for each 1,024 pixels."""
    video: VideoEstimate | None = None
    """Tokens of videos; by default those of an image of 640 by 360 pixels for each second."""


class TokenizerFile(Parameters, frozen=True):
    """A tokenizer in this process."""

    path: Name
    """Path of the model's `tokenizer.json`, in the format of Hugging Face; read with the configuration."""
    max_bytes: Count = 8192
    """Bytes of a prompt that are tokenized; the rest counts in proportion.

    All requests wait while a prompt is tokenized: about 0.4 ms for each KiB of English text or code. Measured with a
    vocabulary of 32,000 byte pairs on one core of a shared machine: 0.4 ms for 1 KiB, 3.5 ms for 8 KiB, 10 ms for
    20 KiB, 140 ms for 220 KiB.
    """


class TokenProducerParameters(Parameters, frozen=True):
    """Method: at most one of `estimate`, `tokenizer`, `vllm` and `udsTokenizerConfig`; `estimate` by default."""

    model_name: str = ""
    """Model whose tokens are counted. Documentation only: without effect."""
    estimate: Estimate | None = None
    """Count four bytes as one token."""
    tokenizer: TokenizerFile | None = None
    """Count with a tokenizer file; needs the extra `tokenizers`."""
    vllm: dict[str, object] | None = None
    """A vLLM server that renders prompts. Refused: the picker calls no other server while it routes a request."""
    uds_tokenizer_config: dict[str, object] | None = None
    """A tokenizer behind a Unix socket. Refused for the same reason."""

    def __post_init__(self) -> None:
        for name, value in (("vllm", self.vllm), ("udsTokenizerConfig", self.uds_tokenizer_config)):
            if value is not None:
                raise ValueError(f"{name} is known, not supported yet; use estimate or tokenizer")
        if self.estimate is not None and self.tokenizer is not None:
            raise ValueError("both estimate and tokenizer are set; leave one of them out")


class TokenProducer(Producer[TokenProducerParameters]):
    """Publishes the number of tokens of a prompt.

    The estimate is four bytes for each token, and the rules in `estimate` for images and videos; the prompt is
    published with placeholders of that size, for the blocks of the prefix cache. The request headers
    `x-llm-d-video-duration-seconds`, `x-llm-d-video-fps` and `x-llm-d-video-resolution` describe its videos.

    A tokenizer counts the prompt's text with the special tokens that it adds, but without those of a chat template. The
    count is exact up to `maxBytes`; a longer text counts in proportion and is not marked as exact. Prompts with media
    are estimated; prompts of token ids or embeddings keep the parser's number. Token ids are not published.
    """

    plugin_type = "token-producer"

    @property
    def warnings(self) -> Sequence[str]:
        given = self.parameters
        if not given.model_name or given.estimate is not None or given.tokenizer is not None:
            return ()
        warning = (
            "modelName alone makes llm-d ask a vLLM server for token ids; here prompts are estimated at four bytes a "
            "token: write estimate: {} to confirm that, or name a tokenizer file"
        )
        return (warning,)

    def setup(self) -> None:
        # A plugin named like its type is the default producer.
        self._key = PROMPT_TOKENS.produced_by("" if self.name == self.plugin_type else self.name)
        self.writes = (self._key,)
        self._estimate = self.parameters.estimate or Estimate()
        file = self.parameters.tokenizer
        self._max_bytes = 0 if file is None else file.max_bytes
        self._tokenizer = None if file is None else _load(file.path)

    def produce(self, request: Request, candidates: Candidates) -> None:
        request.put(self._key, self._count(request))

    def _count(self, request: Request) -> PromptTokens:
        body = request.body
        text, size = ("", 0) if self._tokenizer is None else _text(body, self._max_bytes)
        if self._tokenizer is None or not size:
            return self._sized(request) if body.media else PromptTokens(body.prompt_tokens)
        count = len(self._tokenizer.encode(text))
        if size == len(body.prompt):
            return PromptTokens(count, exact=True)
        return PromptTokens(round(count * len(body.prompt) / size))

    def _sized(self, request: Request) -> PromptTokens:
        """Return the parser's number with the sizes of media estimated by this plugin."""
        body, image, video = request.body, self._estimate.image, self._estimate.video
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


def _text(body: RequestBody, most: int) -> tuple[str, int]:
    """Return the beginning of the prompt in whole characters, and its size in bytes; 0 if it is not all text.

    A zero byte is part of a token id; bytes that are not UTF-8 may be the hash of media.
    """
    head = body.prompt[:most]
    if body.media_items or b"\0" in head:
        return "", 0
    try:
        return codecs.utf_8_decode(head, "strict", len(head) == len(body.prompt))
    except UnicodeDecodeError:
        return "", 0


def _load(path: str) -> "Tokenizer":
    try:
        from tokenizers import Tokenizer  # noqa: PLC0415  an optional dependency
    except ImportError as error:
        raise ValueError(f"tokenizer {path!r} needs the package tokenizers: {install_command('tokenizers')}") from error
    try:
        check_allowed(Path(path))
        tokenizer = Tokenizer.from_file(path)
    except Exception as error:  # the library raises plain Exception
        raise ValueError(f"tokenizer file {path!r} cannot be read: {error}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


class InflightLoadParameters(Parameters, frozen=True):
    """Estimate of the output, and the source of prefix matches."""

    add_estimated_output_tokens: bool = False
    """Add an estimate of the output: `outputRatio` times the prompt, within the two limits."""
    output_ratio: NonNegative = 1.5
    """Output tokens expected for each prompt token."""
    max_estimated_output_tokens: Natural | None = None
    """Upper limit of the estimate; the request's own output limit always applies."""
    prefix_match_info_producer_name: str = ""
    """Name of the producer instance whose matches are read, if configured; empty for the default one."""
    sync_cross_replica_state: bool = True
    """Accepted for compatibility: each picker counts its own requests."""
    output_estimator: Literal["static", "sketch"] = "static"
    """Accepted for compatibility: the estimate is `outputRatio` times the prompt with both; `sketch` is a model of
    output lengths in llm-d-router."""
    sketch: Mapping[str, Any] | None = None
    """Accepted for compatibility, without effect."""


class InflightLoadProducer(PreRequest[InflightLoadParameters]):
    """Publishes `prompt_tokens - matched_tokens`, plus the estimated output if configured.

    The cost is published for the target of each profile that ran; without a prefix match, the whole prompt counts. It
    is added to the target's tokens in flight until the first token. The estimated output counts for the primary target
    only. All instances share one output.
    """

    plugin_type = "inflight-load-producer"
    writes = (IN_FLIGHT_COST, IN_FLIGHT_TOKENS)

    def setup(self) -> None:
        self._match_key = PREFIX_MATCH.produced_by(self.parameters.prefix_match_info_producer_name)
        self.may_read = (self._match_key, PROMPT_TOKENS)

    @property
    def warnings(self) -> Sequence[str]:
        if self.parameters.output_estimator == "static":
            return ()
        return ["outputEstimator: sketch is not supported: outputs are estimated as outputRatio times the prompt"]

    def pre_request(self, request: Request, result: SchedulingResult) -> None:
        match = request.get(self._match_key)
        costs: dict[str, int] = {}
        for profile, leg in result.profiles.items():
            if leg is not None:
                cached = 0 if match is None else match.tokens_at(leg.slot)
                costs[profile] = max(0, request.prompt_tokens - cached)
        costs[result.primary.profile] += self._estimated_output(request)
        request.put(IN_FLIGHT_COST, costs)

    def dump_state(self, snapshot: Snapshot) -> object | None:
        return endpoint_state(
            snapshot, {"requests": snapshot.column(IN_FLIGHT), "tokens": snapshot.column(IN_FLIGHT_TOKENS)}
        )

    def _estimated_output(self, request: Request) -> int:
        if not self.parameters.add_estimated_output_tokens:
            return 0
        estimate = int(self.parameters.output_ratio * request.prompt_tokens)
        limits = (self.parameters.max_estimated_output_tokens, request.body.max_output_tokens)
        return max(0, min([estimate, *(limit for limit in limits if limit is not None)]))
