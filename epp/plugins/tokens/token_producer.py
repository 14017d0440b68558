"""Counts the tokens of a prompt: by the parser's estimate, or with the model's own tokenizer."""

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
    """Four bytes to a token, media by their kind: what the parser of the request found."""

    image: Empty | None = None
    """Accepted empty: the parser sizes images."""
    video: Empty | None = None
    """Accepted empty: the parser sizes videos."""


class TokenizerFile(Parameters, frozen=True):
    """A tokenizer that runs in this process."""

    path: Name
    """The model's `tokenizer.json`, in the format of Hugging Face; read once, when the configuration is."""
    max_bytes: Count = 8192
    """Bytes of a prompt that are tokenized; the rest counts as many tokens for each byte as these do.

    All requests wait while one is tokenized: for some 0.4 ms for each KiB of English text or code. Measured with a
    vocabulary of 32,000 byte pairs on one core of a shared machine: 0.4 ms for 1 KiB, 3.5 ms for 8 KiB, 10 ms for
    20 KiB, 140 ms for 220 KiB.
    """


class TokenProducerParameters(Parameters, frozen=True):
    """Who counts: at most one of `estimate`, `tokenizer`, `vllm` and `udsTokenizerConfig`; `estimate` for none."""

    model_name: str = ""
    """The model whose tokens are counted, for the reader of the configuration: what is counted does not change."""
    estimate: Estimate | None = None
    """Count four bytes as one token."""
    tokenizer: TokenizerFile | None = None
    """Count with a tokenizer file; needs `pip install 'inference-epp[tokenizers]'`."""
    vllm: dict[str, object] | None = None
    """A vLLM server that renders prompts; refused, as requests here wait for no other server."""
    uds_tokenizer_config: dict[str, object] | None = None
    """A tokenizer behind a Unix socket; refused likewise."""

    def __post_init__(self) -> None:
        """Refuse what counts elsewhere, and more than one that counts."""
        for name, value in (("vllm", self.vllm), ("udsTokenizerConfig", self.uds_tokenizer_config)):
            if value is not None:
                raise ValueError(f"{name} is known, not supported yet; use estimate or tokenizer")
        if self.estimate is not None and self.tokenizer is not None:
            raise ValueError("both estimate and tokenizer are set; leave one of them out")


class TokenProducer(Producer[TokenProducerParameters]):
    """Publishes how many tokens a prompt has.

    An estimate is four bytes to a token, with media by their kind. A tokenizer counts the prompt's text, special tokens
    that it adds by itself included, but not those of a chat template: exactly up to `maxBytes`, beyond that in
    proportion, which is not marked as exact. Prompts with media, and those that came as token ids or embeddings, keep
    the parser's number. Tokens are counted, their ids are not published.
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
    """The old name of `token-producer`."""

    plugin_type = "tokenizer"
    stability = Stability.DEPRECATED


def _text(body: RequestBody, most: int) -> tuple[str, int]:
    """Return the beginning of the prompt and its size in bytes, whole characters only; 0 for what is not all text.

    A zero byte is part of a token id, what is not UTF-8 may also be the hash that stands for media.
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
