# SPDX-License-Identifier: Apache-2.0
"""Counts the tokens of a prompt: by the parser's estimate, or with a tokenizer."""

import codecs
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from epp.framework import (
    PROMPT_TOKENS,
    Candidates,
    Count,
    Name,
    Parameters,
    Producer,
    PromptTokens,
    Request,
    RequestBody,
    Stability,
)
from epp.framework.files import check_allowed
from epp.framework.messages import install_command
from epp.plugins.tokens.media_sizes import ImageEstimate, VideoEstimate, says_of_videos, with_sizes

if TYPE_CHECKING:
    from tokenizers import Tokenizer


class Estimate(Parameters, frozen=True):
    """Four bytes for a token, media by their size."""

    image: ImageEstimate | None = None
    """Tokens of images; by default one for 1,024 pixels."""
    video: VideoEstimate | None = None
    """Tokens of videos; by default those of an image of 640 by 360 pixels for each second."""


class TokenizerFile(Parameters, frozen=True):
    """A tokenizer in this process."""

    path: Name
    """Path of the model's `tokenizer.json`, in the format of Hugging Face; read with the configuration."""
    max_bytes: Count = 8192
    """Bytes of a prompt that are tokenized; the rest counts in proportion.

    All requests wait while one is tokenized: about 0.4 ms for each KiB of English text or code. Measured with a
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
    """A vLLM server that renders prompts. Refused: requests here wait for no other server."""
    uds_tokenizer_config: dict[str, object] | None = None
    """A tokenizer behind a Unix socket. Refused for the same reason."""

    def __post_init__(self) -> None:
        """Refuse unsupported methods, and two at once."""
        for name, value in (("vllm", self.vllm), ("udsTokenizerConfig", self.uds_tokenizer_config)):
            if value is not None:
                raise ValueError(f"{name} is known, not supported yet; use estimate or tokenizer")
        if self.estimate is not None and self.tokenizer is not None:
            raise ValueError("both estimate and tokenizer are set; leave one of them out")


class TokenProducer(Producer[TokenProducerParameters]):
    """Publishes the number of tokens of a prompt.

    The estimate is four bytes for a token, with images and videos as `estimate` says; the prompt is published with
    placeholders of that size, for the blocks of the prefix cache. The headers `x-llm-d-video-duration-seconds`,
    `x-llm-d-video-fps` and `x-llm-d-video-resolution` of a request tell of its videos.

    A tokenizer counts the prompt's text, including special tokens that it adds itself, without those of a chat
    template: exactly up to `maxBytes`, beyond that in proportion and not marked as exact. Prompts with media are
    estimated; those sent as token ids or embeddings keep the parser's number. Token ids are not published.
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
        # Either type's own name stands for the default producer.
        self._key = PROMPT_TOKENS.produced_by("" if self.name == self.plugin_type else self.name)
        self.writes = (self._key,)
        self._estimate = self.parameters.estimate or Estimate()
        file = self.parameters.tokenizer
        self._max_bytes = 0 if file is None else file.max_bytes
        self._tokenizer = None if file is None else _load(file.path)

    def produce(self, request: Request, candidates: Candidates) -> None:  # noqa: ARG002
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
        """Return the parser's number with the media as large as they are estimated here."""
        body, image, video = request.body, self._estimate.image, self._estimate.video
        if video is None and says_of_videos(request.headers):
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
    """Return the beginning of the prompt and its size in bytes, whole characters only; 0 if it is not all text.

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
        from tokenizers import Tokenizer  # noqa: PLC0415  an extra, needed by those who name a file
    except ImportError as error:
        raise ValueError(f"tokenizer {path!r} needs the package tokenizers: {install_command('tokenizers')}") from error
    try:
        check_allowed(Path(path))
        tokenizer = Tokenizer.from_file(path)
    except Exception as error:  # its errors have no class of their own
        raise ValueError(f"tokenizer file {path!r} cannot be read: {error}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer
