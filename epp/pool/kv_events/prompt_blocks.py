# SPDX-License-Identifier: Apache-2.0
"""Blocks of the prompts of a request: their keys, which are computed in steps."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from epp.framework import PROMPT_TOKENS, DataKey, MediaTokens, Request
from epp.pool.kv_events.block_keys import TOKEN_BYTES, BlockHash
from epp.pool.kv_events.rows import Keys

_MOST_BLOCKS = 12 * 1024
"""Blocks of a request that are looked up, of all block sizes of the engines."""
_MOST_PROMPTS = 32
"""Prompts of a list that are looked up, the first ones; with several block sizes of engines, as many fewer. Each takes
0.3 ms for 1,000 endpoints."""


class PromptBlocks(NamedTuple):
    """The blocks of a request, of each block size of the engines."""

    keys: Mapping[int, Sequence[Keys]]
    """By block size: keys of each prompt."""
    total_blocks: int
    """Blocks of the configured size, in all prompts."""


class PromptHashing:
    """Computes the blocks of requests, and keeps them with the request."""

    def __init__(self, block_hash: BlockHash, block_tokens: int, key: DataKey[PromptBlocks]) -> None:
        """Count in blocks of `block_tokens`."""
        self._hash = block_hash
        self._block_tokens = block_tokens
        self._key = key

    def known(self, request: Request) -> PromptBlocks | None:
        """Return the blocks of a request; None if they were not computed."""
        return request.get(self._key)

    def begin(self, request: Request, sizes: Collection[int]) -> "Iterator[None] | None":
        """Return the steps of the computation, of blocks of these sizes; None without token ids."""
        prompts = _token_ids(request, self._hash.most_tokens)
        return None if prompts is None else self._steps(request, prompts, sizes)

    def is_long(self, request: Request) -> bool:
        """Return whether the computation takes more than a millisecond or two."""
        return request.prompt_tokens > self._hash.tokens_at_once

    def _steps(self, request: Request, prompts: Sequence[bytes], sizes: Collection[int]) -> Iterator[None]:
        counted = request.get(PROMPT_TOKENS)
        media = () if counted is None else counted.media
        left, keys = _MOST_BLOCKS, {}
        for size in sorted(sizes, reverse=True):
            extras = _extras(media, request.body.cache_salt, size)
            step = max(1, self._hash.tokens_at_once // 4 // size)
            chains = []
            for prompt in _first(prompts[: _MOST_PROMPTS // len(sizes)], left * size):
                parent, chain = self._hash.first(request.model), []
                for start in range(0, len(prompt) // TOKEN_BYTES // size, step):
                    some = prompt[start * size * TOKEN_BYTES : (start + step) * size * TOKEN_BYTES]
                    found = self._hash.chain(parent, some, size, extras[start : start + step])
                    chain += found
                    parent = found[-1]
                    yield
                chains.append(np.array(chain, dtype=np.uint64))
            keys[size] = chains
            left -= sum(map(len, chains))
        total = sum(len(ids) // TOKEN_BYTES // self._block_tokens for ids in prompts)
        request.put(self._key, PromptBlocks(keys, total))


def _token_ids(request: Request, most: int) -> Sequence[bytes] | None:
    """Return the token ids of the first prompts, as many as `most` in all; None if they are unknown."""
    counted = request.get(PROMPT_TOKENS)
    if counted is not None and counted.ids is not None:
        every: Sequence[NDArray[np.integer]] = np.split(counted.ids, counted.ends[:-1][:_MOST_PROMPTS])
        return _first([ids.astype("<u4", copy=False).tobytes() for ids in every[:_MOST_PROMPTS]], most)
    if request.body.is_token_ids:
        return _first(request.body.prompts[:_MOST_PROMPTS], most)
    return None


def _first(prompts: Sequence[bytes], most: int) -> Sequence[bytes]:
    """Return the first `most` token ids of the prompts."""
    left, found = most * TOKEN_BYTES, []
    for prompt in prompts:
        found.append(prompt[:left])
        left -= len(found[-1])
    return found


def _extras(media: Sequence[MediaTokens], salt: str, size: int) -> Sequence[Sequence[str]]:
    """Return the extra strings of each block: the media that overlap it, and after them the salt on the first."""
    end = max((each.offset + each.length for each in media), default=0)
    extras: list[list[str]] = [[] for _ in range(max(1, -(-end // size)))]
    for each in media:
        for block in range(each.offset // size, -(-(each.offset + each.length) // size)):
            extras[block].append(each.identifier)
    if salt:
        extras[0].append(salt)
    return extras
