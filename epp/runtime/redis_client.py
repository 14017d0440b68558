# SPDX-License-Identifier: Apache-2.0
"""Addresses of Redis and Valkey, and their client."""

import asyncio
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit

if TYPE_CHECKING:
    from redis.asyncio import Redis

_MOST_REASON = 200


@dataclass(frozen=True, slots=True)
class RedisAddress:
    """A server of Redis or Valkey, which is no cluster; errors never quote the address, which may hold a password."""

    text: str
    """`redis://` or, with TLS, `rediss://`, then `[user:password@]host[:port][/database]`; or `unix:///path`."""
    ca_file: str = ""
    """Authorities for TLS; empty for those of the system."""
    setting: str = "--shared-state"
    """The flag or parameter that has the address, for errors."""
    ca_setting: str = "--shared-state-ca-file"
    password_file: Path | None = None
    """Read at each connection; takes precedence over other passwords."""

    @property
    def name(self) -> str:
        """The address without credentials."""
        found = self.connection()
        if "host" in found:
            return f"{self._parts.scheme}://{found['host']}:{found['port']}/{found['db']}"
        return f"unix://{found['unix_socket_path']}"

    def connection(self, variables: Mapping[str, str] = os.environ) -> dict[str, Any]:
        """Return the arguments for a client of redis-py; raises ValueError for an invalid address.

        Without a user and a password in the address, `EPP_REDIS_USERNAME` and `EPP_REDIS_PASSWORD` supply them.
        """
        parts = self._parts
        found: dict[str, Any] = {}
        try:
            is_socket = parts.scheme == "unix" and parts.path != ""
            named = parse_qs(parts.query).get("db", ["" if is_socket else parts.path.strip("/")])[0]
            place = (
                {"unix_socket_path": parts.path} if is_socket else {"host": parts.hostname, "port": parts.port or 6379}
            )
            found |= {"db": int(named or 0), **place}
        except ValueError:
            place = {}
        if parts.scheme not in {"redis", "rediss", "unix"} or not place or not all(place.values()):
            raise ValueError(f"{self.setting} is no address; write redis://host:6379/0, and %2F for a / in a password")
        user, password = unquote(parts.username or ""), unquote(parts.password or "")
        if not user and not password:
            user, password = variables.get("EPP_REDIS_USERNAME", ""), variables.get("EPP_REDIS_PASSWORD", "")
        if self.password_file is None:
            found |= {"username": user or None, "password": password or None}
        else:
            found["credential_provider"] = _PasswordFile(self.password_file, user)
        if parts.scheme == "rediss":
            found |= {"ssl": True, "ssl_ca_certs": self.ca_file or None}
        elif self.ca_file:
            raise ValueError(f"{self.ca_setting} needs an address that begins with rediss://")
        return found

    def client(self, answer_seconds: float) -> "Redis":
        """Return a client, which is not connected yet and tries nothing again; raises ValueError without the library.

        A server without an answer for `answer_seconds` counts as failed.
        """
        try:
            from redis.asyncio import Redis  # noqa: PLC0415  loaded only where it is used
            from redis.asyncio.retry import Retry  # noqa: PLC0415  the same
            from redis.backoff import NoBackoff  # noqa: PLC0415  the same
        except ModuleNotFoundError as error:
            raise ValueError(
                f"{self.setting.partition('.')[0]} needs the extra redis: pip install 'inference-epp[redis]'"
            ) from error
        return Redis(
            **self.connection(),
            protocol=2,
            driver_info=None,
            socket_timeout=answer_seconds,
            socket_connect_timeout=answer_seconds,
            retry=Retry(NoBackoff(), 0),
        )

    @property
    def _parts(self) -> SplitResult:
        address = self.text if "://" in self.text else f"redis://{self.text}"
        for old, new in (("valkey://", "redis://"), ("valkeys://", "rediss://")):
            address = new + address.removeprefix(old) if address.startswith(old) else address
        return urlsplit(address)


@dataclass(frozen=True, slots=True)
class _PasswordFile:
    """Gives redis-py a user and the content of a file, which may change."""

    path: Path
    user: str

    async def get_credentials_async(self) -> tuple[str, ...]:
        """Return the user, unless it is the default one, and the password; raises OSError without the file."""
        password = (await asyncio.to_thread(self.path.read_text)).strip()
        return (self.user, password) if self.user else (password,)


def failure_text(error: BaseException) -> str:
    """Return why an operation failed, in one short line."""
    return " ".join(str(error).split())[:_MOST_REASON] or type(error).__name__
