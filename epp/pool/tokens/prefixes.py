# SPDX-License-Identifier: Apache-2.0
"""Tokenizes the new part of a conversation only: its beginning was tokenized for an earlier turn."""

import re
from collections import OrderedDict
from collections.abc import Sequence
from hashlib import blake2b
from secrets import token_bytes
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from tokenizers import AddedToken, Tokenizer

_CACHE_BYTES = 64 * 1024 * 1024
_MOST_CUTS = 256
"""Places of a text, the last ones, at which it may be cut."""
_CUT_BYTES = 256
_KEY_BYTES = 16
_PIECE = 16 * 1024
"""Ids that become an array at a time: no other thread runs meanwhile."""


class _Beginning(NamedTuple):
    ids: NDArray[np.uint32]
    """The ids of a whole text."""
    length: int
    """Number of those of its beginning."""


class Prefixes:
    """Cuts texts before special tokens, where nothing before the cut changes the ids after it, and caches beginnings.

    A tokenizer finds special tokens first, and then encodes each text between two of them. A text may be cut before a
    special token that is part of no other one and leaves the space beside it. The rest begins with the special token:
    some tokenizers put a space before a text at the very beginning.
    """

    def __init__(self, tokenizer: "Tokenizer", most_bytes: int = _CACHE_BYTES) -> None:
        self.tokenized = 0
        """Characters tokenized."""
        self._tokenizer = tokenizer
        self._most = most_bytes
        self._bytes = 0
        self._secret = token_bytes(_KEY_BYTES)
        self._found: dict[bytes, _Beginning] = {}
        self._texts: OrderedDict[int, tuple[NDArray[np.uint32], Sequence[bytes]]] = OrderedDict()
        self._special = _places(tokenizer.get_added_tokens_decoder())
        self._ids = np.array(sorted(self._special.values()), dtype=np.uint32)
        longest_first = sorted(self._special, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")

    def encode(self, text: str) -> NDArray[np.uint32]:
        """Return the ids of a text, without further special tokens."""
        cuts = list(self._pattern.finditer(text))
        keys = self._keys(text, cuts)
        last = cuts[len(cuts) - len(keys) :]
        for key, cut in zip(reversed(keys), reversed(last), strict=True):
            if (known := self._found.get(key)) is not None:
                rest = encode(self._tokenizer, text[cut.start() :], add_special_tokens=False)
                self.tokenized += len(text) - cut.start()
                ids = np.concatenate((known.ids[: known.length], rest))
                break
        else:
            ids = encode(self._tokenizer, text, add_special_tokens=False)
            self.tokenized += len(text)
        positions = np.flatnonzero(np.isin(ids, self._ids))
        if keys and ids[positions].tolist() == [self._special[cut[0]] for cut in cuts]:
            self._put(keys, ids, positions[len(cuts) - len(keys) :].tolist())
        return ids

    def _keys(self, text: str, cuts: Sequence[re.Match[str]]) -> list[bytes]:
        """Return a digest of the text up to the end of each of the last special tokens."""
        keys, done = [], 0
        digest = blake2b(digest_size=_KEY_BYTES, key=self._secret)
        for cut in cuts[-_MOST_CUTS:]:
            digest.update(text[done : cut.end()].encode("utf-8", "surrogatepass"))
            done = cut.end()
            keys.append(digest.digest())
        return keys

    def _put(self, keys: Sequence[bytes], ids: NDArray[np.uint32], counts: Sequence[int]) -> None:
        self._found.update({key: _Beginning(ids, count) for key, count in zip(keys, counts, strict=True)})
        self._texts[id(ids)] = (ids, keys)
        self._bytes += ids.nbytes + _CUT_BYTES * len(keys)
        while self._bytes > self._most:
            _, (old, its_keys) = self._texts.popitem(last=False)
            self._bytes -= old.nbytes + _CUT_BYTES * len(its_keys)
            for key in its_keys:
                if self._found[key].ids is old:
                    del self._found[key]


def encode(tokenizer: "Tokenizer", text: str, *, add_special_tokens: bool) -> NDArray[np.uint32]:
    """Return the ids of a text; the method for batches lets other threads run meanwhile."""
    (encoding,) = tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)
    ids = encoding.ids
    pieces = [np.array(ids[at : at + _PIECE], dtype=np.uint32) for at in range(0, len(ids), _PIECE)]
    return np.concatenate(pieces) if pieces else np.empty(0, dtype=np.uint32)


def _places(added: "dict[int, AddedToken]") -> dict[str, int]:
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
