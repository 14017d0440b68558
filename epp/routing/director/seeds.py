# SPDX-License-Identifier: Apache-2.0
"""Seeds of random choices: not predictable by clients, and recorded with each request."""

from hashlib import blake2b
from secrets import token_bytes

_SEED_BYTES = 8
_SECRET_BYTES = 16


class Seeds:
    """A keyed hash of a counter; the key is secret and drawn once per process."""

    __slots__ = ("_count", "_secret")

    def __init__(self, secret: bytes | None = None) -> None:
        self._secret = token_bytes(_SECRET_BYTES) if secret is None else secret
        self._count = 0

    def next(self) -> int:
        """Return the next seed, 64 bits."""
        self._count += 1
        digest = blake2b(self._count.to_bytes(_SEED_BYTES), key=self._secret, digest_size=_SEED_BYTES)
        return int.from_bytes(digest.digest())
