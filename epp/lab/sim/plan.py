# SPDX-License-Identifier: Apache-2.0
"""Conversion of a request body to the work for the machine and the words of the answer."""

from collections.abc import Sequence
from typing import TypeVar

import msgspec
import xxhash

from epp.lab.sim.openai_api import ApiError, ChatMessage, ChatRequest, CompletionRequest, ResponsesRequest
from epp.lab.sim.profile import SimProfile
from epp.lab.sim.work import SimRequest

_BYTES_PER_TOKEN = 4

# Every word is one token: four bytes, including the space. An answer that is repeated in a longer conversation then has
# the same tokens, and is found in the prefix cache.
_OPENERS = (b"Here", b"That", b"This", b"Then", b"They", b"When", b"Some", b"Each")
_WORD_BYTES = (
    b" the and but for all any one two new old big few red"
    b" hot dry low far own sun sea sky air ice oak elm map"
    b" key box cup pen ink art way day man cat dog fox owl"
    b" bee ant cow hen pig rat bat elk yak can may saw ran"
    b" sat met won got let put cut set hid led fed ate dug"
)
_WORDS = tuple(_WORD_BYTES[start : start + _BYTES_PER_TOKEN] for start in range(0, len(_WORD_BYTES), _BYTES_PER_TOKEN))
_COMPLETION_MAX_TOKENS = 16  # the API's default for completions
_Body = TypeVar("_Body", bound=ChatRequest | CompletionRequest | ResponsesRequest)


def tokenize(text: str) -> list[bytes]:
    """Split `text` into tokens of four UTF-8 bytes; the last one may be shorter, and an empty text has none."""
    data = text.encode()
    return [data[start : start + _BYTES_PER_TOKEN] for start in range(0, len(data), _BYTES_PER_TOKEN)]


def render_chat(messages: Sequence[tuple[str, str]], *, preamble: str = "") -> list[bytes]:
    """Return the tokens of (role, text) pairs, up to the start of the assistant's answer.

    Every part is tokenized separately, so that a longer conversation has the tokens of the shorter one as its prefix.
    """
    tokens = tokenize(preamble)
    for role, text in messages:
        tokens += [*tokenize(f"<|{role}|>"), *tokenize(text), b"<end"]
    return [*tokens, *tokenize("<|assistant|>")]


def answer_tokens(prompt: Sequence[bytes], count: int, *, model: str, seed: int) -> list[bytes]:
    """Return `count` tokens of an answer of `model`, determined by prompt, model and seed."""
    origin = xxhash.xxh3_128(msgspec.json.encode([model, seed]))
    for token in prompt:
        origin.update(token + b"\xff")
    start = origin.digest()
    numbers = [xxhash.xxh3_64_intdigest(start, seed=index) for index in range(count)]
    return [
        (_WORDS if index else _OPENERS)[number % len(_WORDS if index else _OPENERS)]
        for index, number in enumerate(numbers)
    ]


def block_hashes(
    tokens: Sequence[bytes], *, block_size: int, lora_adapter: str | None, cache_salt: str | None
) -> tuple[bytes, ...]:
    """Return a chained hash of each full block of `tokens`: it identifies the block and all blocks before it.

    The chain starts with the adapter and the salt: requests that differ in these do not share blocks.
    """
    parent = xxhash.xxh3_128_digest(msgspec.json.encode([lora_adapter, cache_salt]))
    hashes: list[bytes] = []
    for end in range(block_size, len(tokens) + 1, block_size):
        # 0xff does not occur in UTF-8, so it separates tokens unambiguously.
        parent = xxhash.xxh3_128_digest(parent + b"\xff".join(tokens[end - block_size : end]))
        hashes.append(parent)
    return tuple(hashes)


class Plan(msgspec.Struct, frozen=True):
    """The model, the work for the machine, and the words of the answer, one per token."""

    model: str
    request: SimRequest
    words: tuple[str, ...]
    tool: str = ""
    """Name of the function to call instead of answering with words."""


def decode(body: bytes, kind: type[_Body]) -> _Body:
    """Decode a body; raises ApiError 400 with the position of the error."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _bad_request(f"The request body is not valid: {error}") from error


def make_plan(body: ChatRequest | CompletionRequest, profile: SimProfile, request_id: int) -> Plan:
    """Determine model, prompt and answer; raises ApiError 404 for an unknown model, 400 for an invalid request."""
    model = body.model or profile.model
    if model not in profile.served_models:
        aliases = ", ".join(profile.served_models)
        message = f"The model `{model}` does not exist. Valid aliases: {aliases}."
        raise ApiError(404, "NotFoundError", message, param="model")
    if body.n not in (None, 1):
        raise _bad_request(f"n is {body.n}, but this server gives one answer per request: leave n out", param="n")
    if isinstance(body, ChatRequest):
        messages = [(message.role, _text(message)) for message in body.messages]
        prompt = render_chat(messages, preamble=bytes(body.tools).decode()) if messages else []
    else:
        prompt = _completion_prompt(body.prompt)
    if not prompt:
        raise _bad_request("The prompt is empty: send at least one token", param="prompt")
    limit = _output_limit(body, profile, len(prompt))
    output_tokens = limit if body.ignore_eos else min(limit, profile.default_output_tokens)
    answer = answer_tokens(prompt, output_tokens, model=model, seed=profile.seed)
    lora_adapter = model if model in profile.lora_adapters else None
    request = SimRequest(
        request_id=request_id,
        prompt_tokens=len(prompt),
        output_tokens=output_tokens,
        finish_reason="length" if body.ignore_eos or limit < profile.default_output_tokens else "stop",
        block_hashes=block_hashes(
            [*prompt, *answer], block_size=profile.block_size, lora_adapter=lora_adapter, cache_salt=body.cache_salt
        ),
        lora_adapter=lora_adapter,
    )
    words = tuple(token.decode() for token in answer)
    tool = _tool_of(body) if isinstance(body, ChatRequest) else ""
    return Plan(model, request, _as_arguments(words) if tool else words, tool)


class _Function(msgspec.Struct):
    name: str


class _Tool(msgspec.Struct):
    function: _Function | None = None
    """Function of a chat's tool; in the Responses API, a tool has a name instead."""
    name: str = ""


def _tool_of(body: ChatRequest) -> str:
    if not body.tools or body.tool_choice in (None, "auto", "none"):
        return ""
    try:
        if isinstance(body.tool_choice, dict):
            chosen = msgspec.json.decode(msgspec.json.encode(body.tool_choice), type=_Tool)
        else:
            chosen = msgspec.json.decode(body.tools, type=list[_Tool])[0]
    except (msgspec.DecodeError, IndexError) as error:
        raise _bad_request(f"tools or tool_choice do not name a function: {error}", param="tool_choice") from error
    return chosen.name if chosen.function is None else chosen.function.name


def _as_arguments(words: tuple[str, ...]) -> tuple[str, ...]:
    """Return the words as pieces of a JSON object with the words as its text."""
    pieces = [msgspec.json.encode(word).decode()[1:-1] for word in words]
    pieces[0] = '{"text": "' + pieces[0]
    pieces[-1] += '"}'
    return tuple(pieces)


def _output_limit(body: ChatRequest | CompletionRequest, profile: SimProfile, prompt_tokens: int) -> int:
    room = profile.max_model_len - prompt_tokens
    if room < 1:
        raise _bad_request(
            f"This model's maximum context length is {profile.max_model_len} tokens and the prompt has "
            f"{prompt_tokens} input tokens: shorten it to leave room for an answer",
            param="input_tokens",
        )
    if isinstance(body, ChatRequest):
        wanted = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    else:
        wanted = min(room, _COMPLETION_MAX_TOKENS) if body.max_tokens is None else body.max_tokens
    if wanted is None:
        return room
    if wanted < 1:
        raise _bad_request(f"max_tokens must be at least 1, got {wanted}", param="max_tokens")
    if wanted > room:
        raise _bad_request(
            f"This model's maximum context length is {profile.max_model_len} tokens: after {prompt_tokens} input "
            f"tokens there is room for {room} output tokens, but max_tokens is {wanted}",
            param="max_tokens",
        )
    return wanted


def _text(message: ChatMessage) -> str:
    if message.content is None:
        return ""
    if isinstance(message.content, str):
        return message.content
    return "".join(_part(part) for part in message.content)


def _part(part: dict[str, msgspec.Raw]) -> str:
    if "text" in part:
        try:
            return msgspec.json.decode(part["text"], type=str)
        except msgspec.DecodeError as error:
            raise _bad_request(f"A text part of a message has no text: {error}", param="messages") from error
    # Images and audio have a fixed length; the same content has the same tokens.
    return f"<{xxhash.xxh3_128_hexdigest(msgspec.json.encode(part))}>"


def _completion_prompt(prompt: str | list[str | int | list[int]]) -> list[bytes]:
    match prompt:
        case str(text) | [str(text)]:
            return tokenize(text)
        case [list(token_ids)]:
            pass
        case _:
            token_ids = [token for token in prompt if isinstance(token, int)]
            if len(token_ids) < len(prompt):
                raise _bad_request("prompt has several prompts: send one request for each", param="prompt")
    return [str(token).encode() for token in token_ids]


def _bad_request(message: str, *, param: str | None = None) -> ApiError:
    return ApiError(400, "BadRequestError", message, param=param)
