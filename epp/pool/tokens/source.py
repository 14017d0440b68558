# SPDX-License-Identifier: Apache-2.0
"""Parameters of the token producer, the interface of sources of token ids, and text prompts in the format of vLLM."""

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from enum import StrEnum
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple
from urllib.parse import quote

import msgspec
import numpy as np
from msgspec import Meta, field
from msgspec.structs import replace
from numpy.typing import NDArray

from epp.framework import Count, MediaTokens, Name, Natural, Parameters
from epp.framework.messages import without_credentials
from epp.framework.quantities import duration_setting
from epp.kube.objects.ocm import is_url
from epp.plugins.encoder_cache import ImageEstimate, VideoEstimate
from epp.runtime.addresses import parse_host_port

DEFAULT_URL = "http://localhost:8000"
_MOST_SOCKET_PATH_BYTES = 107


class Estimate(Parameters, frozen=True):
    """Estimate of four bytes per token, and of media by their size."""

    image: ImageEstimate | None = None
    """Tokens of images; by default one token for each 1,024 pixels."""
    video: VideoEstimate | None = None
    """Tokens of videos; by default, for each second, the tokens of an image of 640 by 360 pixels."""


class Vllm(Parameters, frozen=True):
    """A vLLM server that renders prompts; vLLM 0.32 must be started with `--enable-scale-out`."""

    url: Name = DEFAULT_URL
    """Base URL; bodies of requests are sent to `/v1/completions/render` and other render paths below it."""
    timeout: str = "5s"
    """Time limit for an answer. A request only waits for the `budget`; later requests can use a later answer."""
    mm_timeout: str = "30s"
    """Time limit for the answer to a prompt with media."""

    def __post_init__(self) -> None:
        if not is_url(self.url):
            raise ValueError(
                f"url is {without_credentials(self.url)!r:.80}: write http:// or https:// with host, port and path"
            )
        duration_setting("timeout", self.timeout)
        duration_setting("mmTimeout", self.mm_timeout)


class TokenizerFile(Parameters, frozen=True):
    """A tokenizer in this process, and its chat template, which must be as trustworthy as this configuration."""

    path: Name
    """Path of the model's `tokenizer.json`, in the format of Hugging Face; it is read with the configuration."""
    chat_template_path: str = ""
    """Path of the chat template in Jinja; by default `chat_template.jinja` beside the tokenizer, or else the
    `chat_template` in `tokenizer_config.json` there."""
    max_bytes: Count = 512 * 1024
    """Largest request body that is tokenized, in bytes; the tokens of larger bodies are estimated."""


class UdsTokenizerConfig(Parameters, frozen=True):
    """The tokenizer service of llm-d-kv-cache, called over gRPC without TLS."""

    socket_file: Name = "/tmp/tokenizer/tokenizer-uds.socket"  # noqa: S108  as llm-d's manifests mount it
    """Path of the Unix socket of the service; `host:port` with `useTCP`."""
    use_tcp: bool = field(default=False, name="useTCP")
    """Connect by TCP."""
    model_tokenizer_map: Mapping[str, str] = field(default_factory=dict)
    """Folders of tokenizers in the service, or the `tokenizer.json` in them, by `modelName`. If empty, the tokenizer
    `modelName` is used."""

    def __post_init__(self) -> None:
        if self.use_tcp:
            parse_host_port(self.socket_file)
        elif not self.socket_file.startswith("/"):
            raise ValueError(f"socketFile is {self.socket_file!r:.80}: write an absolute path, or set useTCP")
        elif len(self.socket_file.encode()) > _MOST_SOCKET_PATH_BYTES:
            raise ValueError(f"socketFile is longer than {_MOST_SOCKET_PATH_BYTES} bytes: choose a shorter path")

    @property
    def address(self) -> str:
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
    """Model whose tokens `vllm` or `udsTokenizerConfig` supplies. Alone, it selects `vllm` with its defaults."""
    estimate: Estimate | None = None
    """Count four bytes as one token."""
    tokenizer: TokenizerFile | None = None
    """Count with a tokenizer file; requires the extra `tokenizers`."""
    vllm: Vllm | None = None
    """Request token ids from a vLLM server; requires `modelName`."""
    uds_tokenizer_config: UdsTokenizerConfig | None = None
    """Request token ids from llm-d's tokenizer service, which llm-d has deprecated; requires `modelName`."""
    budget: str = "50ms"
    """Longest time that a request waits for token ids; after that it is routed with an estimate."""

    def __post_init__(self) -> None:
        uds = self.uds_tokenizer_config
        methods = {"estimate": self.estimate, "tokenizer": self.tokenizer, "vllm": self.vllm, "udsTokenizerConfig": uds}
        given = [name for name, value in methods.items() if value is not None]
        if len(given) > 1:
            raise ValueError(f"both {given[0]} and {given[1]} are set: leave one of them out")
        if self.vllm is not None and not self.model_name:
            raise ValueError("modelName is missing: name the model that the server at vllm.url serves")
        if uds is not None:
            if not self.model_name:
                raise ValueError("modelName is missing: name the model whose tokens udsTokenizerConfig supplies")
            uds.tokenizer(self.model_name)
        duration_setting("budget", self.budget)

    @property
    def service(self) -> Vllm | None:
        others = (self.estimate, self.tokenizer, self.uds_tokenizer_config)
        is_used = self.model_name and all(method is None for method in others)
        return self.vllm or Vllm() if is_used else None


MOST_TOKENS = 128 * 1024
"""Most tokens of a request that are kept; the index of KV events looks up the same number."""


class Api(StrEnum):
    """An API whose prompts a source may support, by the end of its path."""

    CHAT = "chat/completions"
    COMPLETION = "completions"
    MESSAGES = "messages"

    @classmethod
    def of(cls, path: str) -> "Api | None":
        return next((api for api in cls if path.rstrip("/").endswith(f"/{api}")), None)


class Prompt(NamedTuple):
    """The prompt of a request, as the client sent it."""

    api: Api
    content: bytes
    key: bytes
    """Digest of both."""
    has_media: bool = False


class Tokens(NamedTuple):
    """The token ids of a request."""

    total: int
    """Number of tokens of the prompts; `ids` has the first `MOST_TOKENS`."""
    ids: NDArray[np.uint32]
    ends: tuple[int, ...] = ()
    """End of each prompt of a list, in tokens; empty for a single prompt."""
    media: tuple[MediaTokens, ...] = ()

    @classmethod
    def joined(cls, prompts: Sequence[NDArray[np.uint32]], media: tuple[MediaTokens, ...] = ()) -> "Tokens":
        """Return the tokens of a single prompt, or of a list of prompts."""
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
        """Return the placeholders in order; raises ValueError if they overlap, or do not match the hashes."""
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
    """The source has no tokens for this prompt, but may have tokens for other prompts."""


class SourceFailedError(Exception):
    """The source failed; the message may be logged, and contains no part of a prompt."""


class TokenSource(ABC):
    """Returns the token ids of prompts."""

    name: str
    """Name in log lines and on `/healthz`."""
    most_bytes: int
    """Largest request body."""
    most_fetches: int
    """Most fetches at a time."""

    @abstractmethod
    def opened(self) -> AbstractAsyncContextManager[object]:
        """Keep the resources of `fetch` open until the context ends."""

    async def prepare(self) -> None:  # noqa: B027  optional
        """Prepare for fetches after opening; raises SourceFailedError or TimeoutError."""

    @abstractmethod
    async def fetch(self, prompt: Prompt) -> Tokens:
        """Return the token ids; raises PromptRefusedError, SourceFailedError or TimeoutError."""


class CompletionRequest(msgspec.Struct):
    """The prompts of a completion, and the fields that change their tokens."""

    prompt: str | list[str]
    add_special_tokens: bool | None = None
    truncate_prompt_tokens: int | None = None
    prompt_embeds: msgspec.Raw | None = None

    def texts(self) -> list[str]:
        """Return the prompts; raises PromptRefusedError if their tokens are not those of the texts."""
        if self.truncate_prompt_tokens is not None or self.prompt_embeds is not None:
            raise PromptRefusedError
        return self.prompt if isinstance(self.prompt, list) else [self.prompt]


class _Function(msgspec.Struct):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | msgspec.UnsetType = msgspec.UNSET


class _Tool(msgspec.Struct):
    function: _Function
    type: str = "function"


class ChatRequest(msgspec.Struct):
    """The fields of a chat that its template may use."""

    messages: list[dict[str, Any]]
    tools: list[_Tool] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    add_special_tokens: bool | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    documents: list[dict[str, Any]] | None = None
    reasoning_effort: str | None = None
    truncate_prompt_tokens: int | None = None

    def tool_list(self) -> list[dict[str, Any]] | None:
        """Return the tools with the fields that vLLM reads, in the same order."""
        if not self.tools:
            return None
        return [{"type": "function", "function": msgspec.to_builtins(tool.function)} for tool in self.tools]

    def variables(self) -> dict[str, Any]:
        """Return further variables of the template; fields of the request take precedence over its `kwargs`."""
        found = dict(self.chat_template_kwargs or {})
        if self.reasoning_effort is not None:
            found.setdefault("enable_thinking", self.reasoning_effort != "none")
            found["reasoning_effort"] = self.reasoning_effort
        if self.documents is not None:
            found["documents"] = self.documents
        for name in ("messages", "tools", "continues", "chat_template", "tokenize"):
            found.pop(name, None)
        return found | {"add_generation_prompt": self.add_generation_prompt is not False}

    def conversation(self, *, parts: bool, developer: bool) -> list[dict[str, Any]]:
        """Return the messages with contents as lists of `parts`, or as texts; raises PromptRefusedError for media.

        If the template does not support the role `developer`, the role `system` replaces it.
        """
        messages = [_message(given, parts=parts) for given in self.messages]
        if developer or all(message["role"] != "developer" for message in messages):
            return messages
        return _with_one_system(messages)


decode_completion = msgspec.json.Decoder(CompletionRequest).decode
decode_chat = msgspec.json.Decoder(ChatRequest).decode


def _with_one_system(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages with all `system` and `developer` messages joined into one `system` message at the start."""
    system = [message for message in messages if message["role"] in {"system", "developer"}]
    others = [message for message in messages if message["role"] not in {"system", "developer"}]
    content = system[0]["content"]
    if len(system) > 1 or messages[0] is not system[0]:
        contents = [message["content"] for message in system]
        texts = [text if isinstance(text, str) else "\n".join(part["text"] for part in text) for text in contents]
        content = "\n\n".join(filter(None, texts))
    return [{"role": "system", "content": content}, *others]


def _message(given: Mapping[str, Any], *, parts: bool) -> dict[str, Any]:
    role = given.get("role")
    if not isinstance(role, str):
        raise PromptRefusedError
    texts = _texts(given.get("content"))
    as_parts = parts and role != "tool"
    message: dict[str, Any] = {
        "role": role,
        "content": [{"type": "text", "text": text} for text in texts] if as_parts else "\n".join(texts),
    }
    if role == "assistant":
        if given.get("tool_calls"):
            message["tool_calls"] = [_call(call) for call in given["tool_calls"]]
        if (reasoning := given.get("reasoning")) is not None:
            message |= {"reasoning": reasoning, "reasoning_content": reasoning}
    elif role == "tool" and "tool_call_id" in given:
        message["tool_call_id"] = given["tool_call_id"]
    elif role == "developer":
        message["tools"] = given.get("tools")
    if isinstance(given.get("name"), str):
        message["name"] = given["name"]
    return message


class _Text(msgspec.Struct):
    type: Literal["text"]
    text: str


def _texts(content: object) -> list[str]:
    try:
        found = msgspec.convert(content, str | list[_Text] | None)
    except msgspec.ValidationError:
        raise PromptRefusedError from None
    return [found] if isinstance(found, str) else [part.text for part in found or ()]


def _call(call: Any) -> dict[str, Any]:
    """Return a tool call with its arguments as an object, which is empty if they are not a JSON object."""
    arguments = call["function"].get("arguments")
    if isinstance(arguments, str):
        with suppress(ValueError):
            arguments = json.loads(arguments)
    if not isinstance(arguments, dict):
        arguments = {}
    return {**call, "function": {**call["function"], "arguments": arguments}}
