# SPDX-License-Identifier: Apache-2.0
"""Interface of sources of token ids: prompts, tokens, errors."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from enum import StrEnum
from itertools import pairwise
from typing import Annotated, NamedTuple

import msgspec
import numpy as np
from msgspec import Meta
from msgspec.structs import replace
from numpy.typing import NDArray

from epp.framework import MediaTokens, Natural

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
    """Placeholders of media, in their order."""

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
