# SPDX-License-Identifier: Apache-2.0
"""Hashes a prompt in blocks, each chained to those before it."""

import sys
from array import array

import xxhash

from epp.framework.request import BYTES_PER_TOKEN


def chain_seed(model: str, cache_salt: str) -> int:
    """Return the seed of a prompt's chain: prompts with another model or salt share no block.

    The model's hash seeds the salt's, so that no two pairs give the same bytes.
    """
    model_hash = xxhash.xxh3_64_intdigest(model.encode("utf-8", "surrogatepass"))
    return xxhash.xxh3_64_intdigest(cache_salt.encode("utf-8", "surrogatepass"), seed=model_hash)


def block_hashes(prompt: bytes, *, seed: int, block_tokens: int, max_blocks: int = sys.maxsize) -> "array[int]":
    """Return one 64-bit xxHash (XXH3) for each block, in order; the last one may be shorter.

    Equal hashes at a position mean equal prompts up to the end of that block.
    """
    size = block_tokens * BYTES_PER_TOKEN
    end = min(len(prompt), max_blocks * size)
    digest = xxhash.xxh3_64_intdigest
    return array("Q", [seed := digest(prompt[start : start + size], seed) for start in range(0, end, size)])
