# SPDX-License-Identifier: Apache-2.0
"""The secret of a port, in a file that may change."""

import hashlib
import hmac
from pathlib import Path

import structlog

from epp.framework.errors import ConfigurationError
from epp.framework.files import read_regular

_LEAST_CHARACTERS = 16
_MOST_BYTES = 4096
_REMEDY = "write one line of 16 letters, digits and signs or more into it, such as `openssl rand -hex 32` prints"

_log = structlog.get_logger()

_Version = tuple[int, int, int]


class TokenFile:
    """Read when it changes, as a request comes; an unusable new version changes nothing. For one thread."""

    def __init__(self, path: Path, flag: str = "--admin-token-file") -> None:
        """Read it; raises ConfigurationError. `flag` is the one that names it."""
        self._path = path
        self._flag = flag
        self._version = self._version_now()
        try:
            self._digest = self._read()
        except (OSError, ValueError) as error:
            raise ConfigurationError(f"{flag}: {_reason(path, error)}", remedy=_REMEDY) from error

    def matches(self, token: str) -> bool:
        """Return whether it is the token, in a time that tells nothing of it."""
        version = self._version_now()
        if version != self._version:
            self._version = version
            self._read_again()
        return hmac.compare_digest(_digest(token), self._digest)

    def _read_again(self) -> None:
        try:
            self._digest = self._read()
        except (OSError, ValueError) as error:
            _log.warning("token stays as it was", flag=self._flag, reason=_reason(self._path, error), remedy=_REMEDY)
        else:
            _log.info("token changed", flag=self._flag, file=str(self._path))

    def _version_now(self) -> _Version | None:
        """Return what changes with the file; None where there is none."""
        try:
            status = self._path.stat()
        except OSError:
            return None
        return status.st_mtime_ns, status.st_size, status.st_ino

    def _read(self) -> bytes:
        content = read_regular(self._path, _MOST_BYTES).data
        token = content.strip().decode("ascii", "replace")
        if not len(token) >= _LEAST_CHARACTERS or len(content) > _MOST_BYTES:
            raise ValueError(f"has a token of {len(token)} characters")
        if not (token.isascii() and token.isprintable()) or " " in token:
            raise ValueError("has blanks or characters that no header can have")
        return _digest(token)


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


def _reason(path: Path, error: Exception) -> str:
    if isinstance(error, OSError):
        return f"{path} cannot be read: {error.strerror}"
    return f"{path} {error}"
