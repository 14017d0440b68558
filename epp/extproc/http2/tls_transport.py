# SPDX-License-Identifier: Apache-2.0
"""The transport that a protocol has on top of TLS."""

import asyncio
import ssl
from typing import Any, Protocol


class Session(Protocol):
    """What encrypts and decrypts."""

    @property
    def is_closing(self) -> bool:
        """Whether nothing more is read or written."""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Encrypt and send."""

    def pause(self) -> None:
        """Read nothing for now."""

    def resume(self) -> None:
        """Read on."""

    def close(self) -> None:
        """Close once all is written."""

    def abort(self) -> None:
        """Close without another word."""


class TlsTransport(asyncio.Transport):
    """Asks the session; what waits to be written waits in the transport below."""

    def __init__(self, session: Session, raw: asyncio.Transport, tls: ssl.SSLObject) -> None:
        super().__init__({"ssl_object": tls})
        self._session = session
        self._raw = raw
        self.write = session.write  # type: ignore[method-assign]  # one call less for each write

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return the `ssl_object`, or what the transport below knows."""
        own = super().get_extra_info(name)
        return self._raw.get_extra_info(name, default) if own is None else own

    def is_closing(self) -> bool:
        """Whether it closes, or is closed."""
        return self._session.is_closing or self._raw.is_closing()

    def close(self) -> None:
        """Close once all is written."""
        self._session.close()

    def abort(self) -> None:
        """Close without another word."""
        self._session.abort()

    def can_write_eof(self) -> bool:
        """TLS is not open on one side only."""
        return False

    def pause_reading(self) -> None:
        """Read nothing for now."""
        self._session.pause()

    def resume_reading(self) -> None:
        """Read on."""
        self._session.resume()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Set those of the transport below, of encrypted bytes."""
        self._raw.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        """Return the encrypted bytes that wait."""
        return self._raw.get_write_buffer_size()
