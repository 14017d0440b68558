"""Counts the tokens of a prompt: by the parser's estimate, or with a tokenizer."""

import codecs
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

if TYPE_CHECKING:
    from tokenizers import Tokenizer


class Empty(Parameters, frozen=True):
    """An object without fields."""


class Estimate(Parameters, frozen=True):
    """The parser's estimate: four bytes for a token, media by their kind."""

    image: Empty | None = None
    """Accepted empty: the parser sizes images."""
    video: Empty | None = None
    """Accepted empty: the parser sizes videos."""


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
    """Count with a tokenizer file; needs `pip install 'inference-epp[tokenizers]'`."""
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

    The estimate is four bytes for a token, with media by their kind. A tokenizer counts the prompt's text, including
    special tokens that it adds itself, without those of a chat template: exactly up to `maxBytes`, beyond that in
    proportion and not marked as exact. Prompts with media, and those sent as token ids or embeddings, keep the
    parser's number. Token ids are not published.
    """

    plugin_type = "token-producer"

    def setup(self) -> None:
        # Either type's own name stands for the default producer.
        self._key = PROMPT_TOKENS.produced_by("" if self.name == self.plugin_type else self.name)
        self.writes = (self._key,)
        file = self.parameters.tokenizer
        self._max_bytes = 0 if file is None else file.max_bytes
        self._tokenizer = None if file is None else _load(file.path)

    def produce(self, request: Request, candidates: Candidates) -> None:  # noqa: ARG002
        request.put(self._key, self._count(request.body))

    def _count(self, body: RequestBody) -> PromptTokens:
        text, size = ("", 0) if self._tokenizer is None else _text(body, self._max_bytes)
        if self._tokenizer is None or not size:
            return PromptTokens(body.prompt_tokens)
        count = len(self._tokenizer.encode(text))
        if size == len(body.prompt):
            return PromptTokens(count, exact=True)
        return PromptTokens(round(count * len(body.prompt) / size))


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
        raise ValueError(
            f"tokenizer {path!r} needs the package tokenizers: pip install 'inference-epp[tokenizers]'"
        ) from error
    try:
        tokenizer = Tokenizer.from_file(path)
    except Exception as error:  # its errors have no class of their own
        raise ValueError(f"tokenizer file {path!r} cannot be read: {error}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer
