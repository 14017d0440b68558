# SPDX-License-Identifier: Apache-2.0
"""Token ids from a tokenizer file and a chat template, computed in a thread for the new part of a conversation."""

import asyncio
import re
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from queue import SimpleQueue
from secrets import token_bytes
from threading import Thread
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from epp.framework.files import check_allowed, read_regular
from epp.framework.messages import install_command
from epp.pool.tokens.source import (
    Api,
    Prompt,
    PromptRefusedError,
    TokenizerFile,
    Tokens,
    TokenSource,
    decode_chat,
    decode_completion,
)

if TYPE_CHECKING:
    from tokenizers import AddedToken, Tokenizer

    from epp.pool.tokens.chat_template import ChatTemplate


_CACHE_BYTES = 64 * 1024 * 1024
_MOST_CUTS = 256
"""Number of positions, the last ones, at which a text may be cut."""
_CUT_BYTES = 256
_KEY_BYTES = 16
_PIECE = 16 * 1024
"""Ids that are copied into an array at a time; other threads are blocked meanwhile."""


class Prefixes:
    """Cuts texts before special tokens, which keep the ids on both sides independent, and caches the first parts.

    A tokenizer finds special tokens first, and then encodes each text between two of them. A text may be cut before a
    special token that is not part of another one and does not strip spaces. The second part begins with the special
    token, since some tokenizers insert a space at the beginning of a text.
    """

    def __init__(self, tokenizer: "Tokenizer", most_bytes: int = _CACHE_BYTES) -> None:
        self.tokenized = 0
        """Characters tokenized."""
        self._tokenizer = tokenizer
        self._most = most_bytes
        self._bytes = 0
        self._secret = token_bytes(_KEY_BYTES)
        self._found: dict[bytes, tuple[NDArray[np.uint32], int]] = {}
        """Ids of a whole text, and the number of ids of its first part; by digest of the first part."""
        self._texts: OrderedDict[int, tuple[NDArray[np.uint32], Sequence[bytes]]] = OrderedDict()
        self._special = _cut_tokens(tokenizer.get_added_tokens_decoder())
        self._ids = np.array(sorted(self._special.values()), dtype=np.uint32)
        longest_first = sorted(self._special, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")

    def encode(self, text: str) -> NDArray[np.uint32]:
        """Return the ids of a text; no special tokens are added."""
        cuts = list(self._pattern.finditer(text))
        last, keys, done = cuts[-_MOST_CUTS:], list[bytes](), 0
        digest = blake2b(digest_size=_KEY_BYTES, key=self._secret)
        for cut in last:  # the key is a digest of the text up to the end of the special token
            digest.update(text[done : cut.end()].encode("utf-8", "surrogatepass"))
            done = cut.end()
            keys.append(digest.digest())
        for key, cut in zip(reversed(keys), reversed(last), strict=True):
            if (known := self._found.get(key)) is not None:
                rest = encode(self._tokenizer, text[cut.start() :], add_special_tokens=False)
                self.tokenized += len(text) - cut.start()
                ids = np.concatenate((known[0][: known[1]], rest))
                break
        else:
            ids = encode(self._tokenizer, text, add_special_tokens=False)
            self.tokenized += len(text)
        positions = np.flatnonzero(np.isin(ids, self._ids))
        if keys and ids[positions].tolist() == [self._special[cut[0]] for cut in cuts]:
            self._put(keys, ids, positions[len(cuts) - len(keys) :].tolist())
        return ids

    def _put(self, keys: Sequence[bytes], ids: NDArray[np.uint32], counts: Sequence[int]) -> None:
        self._found.update({key: (ids, count) for key, count in zip(keys, counts, strict=True)})
        self._texts[id(ids)] = (ids, keys)
        self._bytes += ids.nbytes + _CUT_BYTES * len(keys)
        while self._bytes > self._most:
            _, (old, its_keys) = self._texts.popitem(last=False)
            self._bytes -= old.nbytes + _CUT_BYTES * len(its_keys)
            for key in its_keys:
                if self._found[key][0] is old:
                    del self._found[key]


def encode(tokenizer: "Tokenizer", text: str, *, add_special_tokens: bool) -> NDArray[np.uint32]:
    """Return the ids of a text; only the library's method for batches does not block other threads."""
    (encoding,) = tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)
    ids = encoding.ids
    pieces = [np.array(ids[at : at + _PIECE], dtype=np.uint32) for at in range(0, len(ids), _PIECE)]
    return np.concatenate(pieces) if pieces else np.empty(0, dtype=np.uint32)


def _cut_tokens(added: "dict[int, AddedToken]") -> dict[str, int]:
    """Return the special tokens before which texts may be cut."""
    contents = [token.content for token in added.values()]
    return {
        token.content: number
        for number, token in added.items()
        if token.special
        and not (token.normalized or token.lstrip or token.rstrip or token.single_word)
        and token.content.strip() == token.content != ""
        and sum(token.content in other for other in contents) == 1
    }


_CONFIG, _TEMPLATE = "tokenizer_config.json", "chat_template.jinja"
_MOST_MESSAGES = 4096
"""Messages of a chat, since a template may take time that grows with the square of their number; prompts of a list."""
_TIMEOUT_SECONDS = 10.0
_MOST_FILE_BYTES = 16 * 1024 * 1024
_SPECIAL_TOKENS = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
_Job: TypeAlias = "tuple[Prompt, asyncio.Future[Tokens | None]]"


class LocalTokenizer(TokenSource):
    """Tokenizes completions, and chats if there is a template, like vLLM."""

    most_fetches = 16

    def __init__(self, given: TokenizerFile) -> None:
        """Read the files; raises ValueError."""
        self.name = given.path
        self.most_bytes = given.max_bytes
        self._tokenizer = _load(given.path)
        self.template = _load_template(Path(given.path).parent, given.chat_template_path)
        """None if there is no chat template."""
        self.prefixes = Prefixes(self._tokenizer)
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Run a thread; the process does not wait for it, since a template may run forever."""
        self._jobs = SimpleQueue()
        Thread(target=self._work, args=(self._jobs, asyncio.get_running_loop()), name="tokenizer", daemon=True).start()
        try:
            yield
        finally:
            self._jobs.put(None)

    async def fetch(self, prompt: Prompt) -> Tokens:
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
            except Exception:  # noqa: BLE001  a template may raise any exception
                tokens = None
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(_settle, found, tokens)

    def _tokens(self, prompt: Prompt) -> Tokens:
        if prompt.api is not Api.COMPLETION:
            return self._chat(prompt)
        asked = decode_completion(prompt.content)
        texts = asked.texts()
        if len(texts) > _MOST_MESSAGES:
            raise PromptRefusedError
        special = asked.add_special_tokens is not False
        return Tokens.joined([encode(self._tokenizer, text, add_special_tokens=special) for text in texts])

    def _chat(self, prompt: Prompt) -> Tokens:
        template = self.template
        if template is None or prompt.api is not Api.CHAT:
            raise PromptRefusedError
        asked = decode_chat(prompt.content)
        is_unsupported = asked.chat_template is not None or asked.truncate_prompt_tokens is not None
        if is_unsupported or len(asked.messages) > _MOST_MESSAGES:
            raise PromptRefusedError
        text = template.render(
            asked.conversation(parts=template.takes_parts, developer=template.has_developer_role),
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
    """Return the template of the given path, of a file beside the tokenizer, or of the tokenizer's configuration."""
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
    tokens = ((f"{name}_token", config.get(f"{name}_token")) for name in _SPECIAL_TOKENS)
    texts = {name: token.get("content") if isinstance(token, dict) else token for name, token in tokens}
    return ChatTemplate(templates, {name: text for name, text in texts.items() if isinstance(text, str)})


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
