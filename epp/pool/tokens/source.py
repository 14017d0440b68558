# SPDX-License-Identifier: Apache-2.0
"""Parameters of the token producer, and the interface of sources of token ids: prompts, tokens, errors."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from enum import StrEnum
from itertools import pairwise
from pathlib import Path
from typing import Annotated, NamedTuple
from urllib.parse import quote

import msgspec
import numpy as np
from msgspec import Meta, field
from msgspec.structs import replace
from numpy.typing import NDArray

from epp.framework import Count, MediaTokens, Name, Natural, Parameters
from epp.framework.messages import without_credentials
from epp.framework.quantities import parse_duration
from epp.kube.objects.dynamic_scoring import is_url
from epp.plugins.encoder_cache import ImageEstimate, VideoEstimate
from epp.runtime.addresses import parse_host_port

DEFAULT_URL = "http://localhost:8000"
_MOST_SOCKET_PATH_BYTES = 107


class Estimate(Parameters, frozen=True):
    """Estimate of four bytes for each token, and of media by their size."""

    image: ImageEstimate | None = None
    """Tokens of images; by default one for each 1,024 pixels."""
    video: VideoEstimate | None = None
    """Tokens of videos; by default those of an image of 640 by 360 pixels for each second."""


class Vllm(Parameters, frozen=True):
    """A vLLM server that renders prompts; of vLLM 0.32, one started with `--enable-scale-out`."""

    url: Name = DEFAULT_URL
    """Base URL; bodies of requests are sent to `/v1/completions/render` and other render paths below it."""
    timeout: str = "5s"
    """Time for an answer. A request waits for the `budget` only; a later answer is of use to the next ones."""
    mm_timeout: str = "30s"
    """Time for the answer to a prompt with media."""

    def __post_init__(self) -> None:
        if not is_url(self.url):
            raise ValueError(
                f"url is {without_credentials(self.url)!r:.80}: write http:// or https:// with host, port and path"
            )
        for name, text in (("timeout", self.timeout), ("mmTimeout", self.mm_timeout)):
            _check_positive(name, text)


class TokenizerFile(Parameters, frozen=True):
    """A tokenizer in this process, and its chat template: as trusted as this configuration."""

    path: Name
    """Path of the model's `tokenizer.json`, in the format of Hugging Face; read with the configuration."""
    chat_template_path: str = ""
    """Path of the chat template in Jinja; by default `chat_template.jinja` beside the tokenizer, or else the
    `chat_template` in `tokenizer_config.json` there."""
    max_bytes: Count = 512 * 1024
    """Bytes of a request body that is tokenized; the tokens of a larger one are estimated."""


class UdsTokenizerConfig(Parameters, frozen=True):
    """The tokenizer service of llm-d-kv-cache, asked by gRPC without TLS."""

    socket_file: Name = "/tmp/tokenizer/tokenizer-uds.socket"  # noqa: S108  as llm-d's manifests mount it
    """Path of its Unix socket; `host:port` with `useTCP`."""
    use_tcp: bool = field(default=False, name="useTCP")
    """Connect by TCP."""
    model_tokenizer_map: Mapping[str, str] = field(default_factory=dict)
    """Folders of tokenizers in the service, or the `tokenizer.json` in them, by `modelName`; empty: it is asked for
    `modelName` itself."""

    def __post_init__(self) -> None:
        if self.use_tcp:
            parse_host_port(self.socket_file)
        elif not self.socket_file.startswith("/"):
            raise ValueError(f"socketFile is {self.socket_file!r:.80}: write an absolute path, or set useTCP")
        elif len(self.socket_file.encode()) > _MOST_SOCKET_PATH_BYTES:
            raise ValueError(f"socketFile is longer than {_MOST_SOCKET_PATH_BYTES} bytes: choose a shorter path")

    @property
    def address(self) -> str:
        """The address, as gRPC writes it."""
        return f"dns:{self.socket_file}" if self.use_tcp else f"unix://{quote(self.socket_file)}"

    def tokenizer(self, model: str) -> str:
        """Return the name of the model's tokenizer in the service; raises ValueError for an unlisted model."""
        if not self.model_tokenizer_map:
            return model
        if model not in self.model_tokenizer_map:
            raise ValueError(f"modelName {model!r} is not in modelTokenizerMap: add it")
        path = Path(self.model_tokenizer_map[model])
        return str(path.parent if path.name == "tokenizer.json" else path)


class TokenProducerParameters(Parameters, frozen=True):
    """Method: at most one of `estimate`, `tokenizer`, `vllm` and `udsTokenizerConfig`; `estimate` by default."""

    model_name: str = ""
    """Model that `vllm` or `udsTokenizerConfig` is asked about. Without a method, `vllm` with its defaults is used."""
    estimate: Estimate | None = None
    """Count four bytes as one token."""
    tokenizer: TokenizerFile | None = None
    """Count with a tokenizer file; needs the extra `tokenizers`."""
    vllm: Vllm | None = None
    """Ask a vLLM server for token ids; needs `modelName`."""
    uds_tokenizer_config: UdsTokenizerConfig | None = None
    """Ask llm-d's tokenizer service, which it has deprecated; needs `modelName`."""
    budget: str = "50ms"
    """Time that a request may wait for token ids; after that it is routed with an estimate."""

    def __post_init__(self) -> None:
        uds = self.uds_tokenizer_config
        methods = {"estimate": self.estimate, "tokenizer": self.tokenizer, "vllm": self.vllm, "udsTokenizerConfig": uds}
        given = [name for name, value in methods.items() if value is not None]
        if len(given) > 1:
            raise ValueError(f"both {given[0]} and {given[1]} are set; leave one of them out")
        if self.vllm is not None and not self.model_name:
            raise ValueError("modelName is missing: name the model that the server at vllm.url serves")
        if uds is not None:
            if not self.model_name:
                raise ValueError("modelName is missing: name the model that udsTokenizerConfig is asked about")
            uds.tokenizer(self.model_name)
        _check_positive("budget", self.budget)

    @property
    def service(self) -> Vllm | None:
        """The server to ask."""
        others = (self.estimate, self.tokenizer, self.uds_tokenizer_config)
        if self.model_name and all(method is None for method in others):
            return self.vllm or Vllm()
        return None


def _check_positive(name: str, text: str) -> None:
    try:
        seconds = parse_duration(text)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    if seconds <= 0:
        raise ValueError(f"{name} is {text!r}: write a duration above 0")


MOST_TOKENS = 128 * 1024
"""Tokens of a request that are kept: as many as the index of KV events looks up."""


class Api(StrEnum):
    """An API whose prompts a source may know, by the end of its path."""

    CHAT = "chat/completions"
    COMPLETION = "completions"
    MESSAGES = "messages"

    @classmethod
    def of(cls, path: str) -> "Api | None":
        """Return the API of a request; None for any other."""
        return next((api for api in cls if path.rstrip("/").endswith(f"/{api}")), None)


class Prompt(NamedTuple):
    """The prompt of a request, as the client sent it."""

    api: Api
    content: bytes
    """The body."""
    key: bytes
    """Digest of both."""
    has_media: bool = False


class Tokens(NamedTuple):
    """The token ids of a request."""

    total: int
    """Tokens of the prompts; `ids` has the first `MOST_TOKENS`."""
    ids: NDArray[np.uint32]
    ends: tuple[int, ...] = ()
    """Where each prompt of a list ends; empty for a single prompt."""
    media: tuple[MediaTokens, ...] = ()

    @classmethod
    def joined(cls, prompts: Sequence[NDArray[np.uint32]], media: tuple[MediaTokens, ...] = ()) -> "Tokens":
        """Return those of several prompts, or of a single one."""
        every = prompts[0] if len(prompts) == 1 else np.concatenate(prompts)
        kept = every[:MOST_TOKENS].copy() if len(every) > MOST_TOKENS else every
        if len(prompts) == 1:
            return cls(len(every), kept, (), media)
        ends = np.cumsum([len(each) for each in prompts])
        return cls(len(every), kept, tuple(np.minimum(ends, len(kept)).tolist()))


class _Placeholder(msgspec.Struct):
    offset: Natural
    length: Natural


class Features(msgspec.Struct):
    """Media of a prompt, by modality, as vLLM names and places them."""

    mm_hashes: dict[str, list[Annotated[str, Meta(max_length=1024)]]] = {}
    mm_placeholders: dict[str, list[_Placeholder]] = {}

    def media(self) -> tuple[MediaTokens, ...]:
        """Return the placeholders in order; raises ValueError where they overlap, or do not pair with hashes."""
        found = [
            MediaTokens(identifier, place.offset, place.length)
            for kind, places in self.mm_placeholders.items()
            for identifier, place in zip(self.mm_hashes.get(kind, ()), places, strict=True)
        ]
        found.sort(key=lambda media: media.offset)
        if any(one.offset + one.length > other.offset for one, other in pairwise(found)):
            raise ValueError("placeholders overlap")
        return tuple(
            replace(media, length=min(media.length, MOST_TOKENS - media.offset))
            for media in found
            if media.offset < MOST_TOKENS
        )


class PromptRefusedError(Exception):
    """The source has no tokens for this prompt; others may have."""


class SourceFailedError(Exception):
    """The source failed; the message may be logged, and holds nothing of a prompt."""


class TokenSource(ABC):
    """Returns the token ids of prompts."""

    name: str
    """In log lines and on `/healthz`."""
    most_bytes: int
    """Largest body that it is asked about."""
    most_fetches: int
    """Prompts that it is asked about at a time."""

    @abstractmethod
    def opened(self) -> AbstractAsyncContextManager[object]:
        """Hold what `fetch` needs, until the context ends."""

    async def prepare(self) -> None:  # noqa: B027  most need nothing
        """Get ready, once it is open; raises SourceFailedError or TimeoutError."""

    @abstractmethod
    async def fetch(self, prompt: Prompt) -> Tokens:
        """Return the token ids; raises PromptRefusedError, SourceFailedError or TimeoutError."""
