"""Prompts into tokens, tokens into block hashes, and the words of the answer."""

from collections.abc import Sequence

import msgspec
import xxhash

__all__ = ["answer_tokens", "block_hashes", "render_chat", "tokenize"]

_BYTES_PER_TOKEN = 4

# Every word is one token, four bytes with its blank, so that an answer sent back as part of a longer
# conversation has the tokens it had when it was generated, and is found in the prefix cache.
_OPENERS = (b"Here", b"That", b"This", b"Then", b"They", b"When", b"Some", b"Each")
_WORD_BYTES = (
    b" the and but for all any one two new old big few red"
    b" hot dry low far own sun sea sky air ice oak elm map"
    b" key box cup pen ink art way day man cat dog fox owl"
    b" bee ant cow hen pig rat bat elk yak can may saw ran"
    b" sat met won got let put cut set hid led fed ate dug"
)
_WORDS = tuple(_WORD_BYTES[start : start + _BYTES_PER_TOKEN] for start in range(0, len(_WORD_BYTES), _BYTES_PER_TOKEN))


def tokenize(text: str) -> list[bytes]:
    """Cut `text` into tokens of four UTF-8 bytes; the last one may be shorter, and an empty text has none."""
    data = text.encode()
    return [data[start : start + _BYTES_PER_TOKEN] for start in range(0, len(data), _BYTES_PER_TOKEN)]


def render_chat(messages: Sequence[tuple[str, str]], *, preamble: str = "") -> list[bytes]:
    """Tokens of a conversation of (role, text) pairs, ending where the assistant is to speak.

    Every part is cut on its own: a conversation that goes on has all the tokens it had before as its prefix.
    """
    tokens = tokenize(preamble)
    for role, text in messages:
        tokens += [*tokenize(f"<|{role}|>"), *tokenize(text), b"<end"]
    return [*tokens, *tokenize("<|assistant|>")]


def answer_tokens(prompt: Sequence[bytes], count: int, *, model: str, seed: int) -> list[bytes]:
    """Return the `count` tokens that `model` answers: the same for the same prompt, model and seed."""
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
    """One hash for each full block of `tokens`, chained: a hash stands for its block and all before it.

    The chain starts from the adapter and the salt, so nothing is shared between different ones.
    """
    parent = xxhash.xxh3_128_digest(msgspec.json.encode([lora_adapter, cache_salt]))
    hashes: list[bytes] = []
    for end in range(block_size, len(tokens) + 1, block_size):
        # 0xff is no byte of any UTF-8 text: tokens cannot run into each other.
        parent = xxhash.xxh3_128_digest(parent + b"\xff".join(tokens[end - block_size : end]))
        hashes.append(parent)
    return tuple(hashes)
