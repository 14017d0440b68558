# SPDX-License-Identifier: Apache-2.0
"""What scorers and their sources are asked with."""

from abc import ABC, abstractmethod
from collections.abc import Mapping


class FetchError(Exception):
    """There is no answer that can be used."""


class Client(ABC):
    """A client of HTTP servers."""

    @abstractmethod
    async def get(self, url: str, *, query: Mapping[str, str] | None = None, token_file: str = "") -> bytes:
        """Return the body of the answer; raises FetchError."""

    @abstractmethod
    async def post(self, url: str, body: bytes, *, token_file: str = "") -> bytes:
        """Send JSON; return the body of the answer; raises FetchError."""
