# SPDX-License-Identifier: Apache-2.0
"""Tokens: of prompts, of answers, and the hashes of their blocks."""

from collections.abc import Sequence

import msgspec
import xxhash

__all__ = ["answer_tokens", "block_hashes", "render_chat", "tokenize"]

_BYTES_PER_TOKEN = 4

# Every word is one token, four bytes with its blank. An answer that comes back in a longer conversation then has the
# tokens it was generated with, and is found in the prefix cache.
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
    """Return one hash for each full block of `tokens`, chained: a hash stands for its block and all before it.

    The chain starts with the adapter and the salt: requests that differ in these share no block.
    """
    parent = xxhash.xxh3_128_digest(msgspec.json.encode([lora_adapter, cache_salt]))
    hashes: list[bytes] = []
    for end in range(block_size, len(tokens) + 1, block_size):
        # 0xff is in no UTF-8 text, so that it separates tokens unambiguously.
        parent = xxhash.xxh3_128_digest(parent + b"\xff".join(tokens[end - block_size : end]))
        hashes.append(parent)
    return tuple(hashes)
