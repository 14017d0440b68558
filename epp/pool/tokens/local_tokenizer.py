# SPDX-License-Identifier: Apache-2.0
"""A tokenizer file with the chat template beside it: token ids in a thread of this process."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from epp.framework.files import check_allowed, read_regular
from epp.framework.messages import install_command
from epp.pool.tokens.chat_request import ChatRequest, CompletionRequest
from epp.pool.tokens.prefixes import Prefixes, encode
from epp.pool.tokens.source import Api, Prompt, PromptRefusedError, Tokens, TokenSource

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from epp.pool.tokens.chat_template import ChatTemplate

_CONFIG, _TEMPLATE = "tokenizer_config.json", "chat_template.jinja"
_MOST_MESSAGES = 4096
"""Messages of a chat; a template may take time that grows with the square of their number. Also prompts of a list."""
_TIMEOUT_SECONDS = 10.0
_MOST_FILE_BYTES = 16 * 1024 * 1024
_SPECIAL_TOKENS = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
_Job: TypeAlias = "tuple[Prompt, asyncio.Future[Tokens | None]]"
_decode_chat = msgspec.json.Decoder(ChatRequest).decode
_decode_completion = msgspec.json.Decoder(CompletionRequest).decode


class LocalTokenizer(TokenSource):
    """Tokenizes completions, and chats if there is a template, as vLLM does."""

    most_fetches = 16

    def __init__(self, path: str, template_path: str, *, most_bytes: int) -> None:
        """Read the files; raises ValueError."""
        self.name = path
        self.most_bytes = most_bytes
        self._tokenizer = _load(path)
        self.template = _load_template(Path(path).parent, template_path)
        """The chat template; None without one."""
        self.prefixes = Prefixes(self._tokenizer)
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Run a thread; the process does not wait for it, as a template may never end."""
        self._jobs = SimpleQueue()
        Thread(target=self._work, args=(self._jobs, asyncio.get_running_loop()), name="tokenizer", daemon=True).start()
        try:
            yield
        finally:
            self._jobs.put(None)

    async def fetch(self, prompt: Prompt) -> Tokens:
        """Tokenize in the thread."""
        found: asyncio.Future[Tokens | None] = asyncio.get_running_loop().create_future()
        self._jobs.put((prompt, found))
        async with asyncio.timeout(_TIMEOUT_SECONDS):
            tokens = await found
        if tokens is None:
            raise PromptRefusedError
        return tokens

    def _work(self, jobs: "SimpleQueue[_Job | None]", loop: asyncio.AbstractEventLoop) -> None:
        while (job := jobs.get()) is not None:
            prompt, found = job
            if found.cancelled():
                continue
            try:
                tokens = self._tokens(prompt)
            except Exception:  # noqa: BLE001  a template may raise anything about a request that it does not like
                tokens = None
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(_settle, found, tokens)

    def _tokens(self, prompt: Prompt) -> Tokens:
        return self._completion(prompt.content) if prompt.api is Api.COMPLETION else self._chat(prompt)

    def _completion(self, content: bytes) -> Tokens:
        asked = _decode_completion(content)
        if asked.truncate_prompt_tokens is not None or asked.prompt_embeds is not None:
            raise PromptRefusedError
        texts = asked.prompt if isinstance(asked.prompt, list) else [asked.prompt]
        if len(texts) > _MOST_MESSAGES:
            raise PromptRefusedError
        special = asked.add_special_tokens is not False
        return Tokens.joined([encode(self._tokenizer, text, add_special_tokens=special) for text in texts])

    def _chat(self, prompt: Prompt) -> Tokens:
        template = self.template
        if template is None or prompt.api is not Api.CHAT:
            raise PromptRefusedError
        asked = _decode_chat(prompt.content)
        is_other = asked.chat_template is not None or asked.truncate_prompt_tokens is not None
        if is_other or len(asked.messages) > _MOST_MESSAGES:
            raise PromptRefusedError
        text = template.render(
            asked.conversation(parts=template.wants_parts, developer=template.knows_developer),
            asked.tool_list(),
            continues=bool(asked.continue_final_message),
            **asked.variables(),
        )
        if asked.add_special_tokens:
            return Tokens.joined([encode(self._tokenizer, text, add_special_tokens=True)])
        return Tokens.joined([self.prefixes.encode(text)])


def _settle(found: "asyncio.Future[Tokens | None]", tokens: Tokens | None) -> None:
    if not found.done():
        found.set_result(tokens)


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


def _load_template(folder: Path, template_path: str) -> "ChatTemplate | None":
    """Return the template of a path, or of a file beside the tokenizer, or of the tokenizer's configuration."""
    config = _read_config(folder / _CONFIG)
    beside = folder / _TEMPLATE
    named = config.get("chat_template")
    if template_path or beside.is_file():
        templates = {"default": _read(Path(template_path or beside)).decode()}
    elif isinstance(named, str):
        templates = {"default": named}
    elif isinstance(named, list):
        templates = {str(each["name"]): str(each["template"]) for each in named}
    else:
        return None
    try:
        from epp.pool.tokens.chat_template import ChatTemplate  # noqa: PLC0415  it needs an optional dependency
    except ImportError as error:
        raise ValueError(f"chat templates need the package jinja2: {install_command('tokenizers')}") from error
    return ChatTemplate(templates, _special_tokens(config))


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    found = {}
    for name in _SPECIAL_TOKENS:
        token = config.get(f"{name}_token")
        text = token.get("content") if isinstance(token, dict) else token
        if isinstance(text, str):
            found[f"{name}_token"] = text
    return found


def _read_config(path: Path) -> Mapping[str, Any]:
    if not path.is_file():
        return {}
    try:
        return msgspec.json.decode(_read(path), type=dict[str, Any])
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error


def _read(path: Path) -> bytes:
    try:
        data = read_regular(path, _MOST_FILE_BYTES).data
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}") from error
    if len(data) > _MOST_FILE_BYTES:
        raise ValueError(f"{path} has more than {_MOST_FILE_BYTES} bytes")
    return data
