# SPDX-License-Identifier: Apache-2.0
"""TLS of the metrics port: its certificate, and the authorities of client certificates."""

import asyncio
import ssl
from dataclasses import dataclass
from pathlib import Path

import structlog

from epp.extproc.tls import CertificateFiles, server_context
from epp.framework.errors import ConfigurationError
from epp.framework.files import read_regular

_DIRECTORY_FLAG, _AUTHORITY_FLAG = "--metrics-cert-dir", "--metrics-client-ca-file"
_MOST_BYTES = 1024 * 1024

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class PageTlsSettings:
    """Where the files are."""

    directory: Path
    """Holds tls.crt and tls.key."""
    client_authorities: Path | None = None
    """PEM file with the authorities of client certificates; None where clients need none."""


class PageTls:
    """Returns the context of each new connection. Changed files take effect with the next connection."""

    def __init__(self, settings: PageTlsSettings) -> None:
        """Read the files; raises ConfigurationError."""
        self._files = CertificateFiles(settings.directory, _DIRECTORY_FLAG)
        self._path = settings.client_authorities
        self._version = self._version_now()
        try:
            self._authorities = self._read()
            self._context = self._new()
        except (OSError, ValueError, ssl.SSLError) as error:
            raise ConfigurationError(
                f"{_AUTHORITY_FLAG}: {_reason(self._path, error)}: write certificates of authorities in PEM"
            ) from error

    async def __call__(self) -> ssl.SSLContext:
        """Return the context for a connection that is accepted now."""
        await asyncio.to_thread(self._renew)  # file systems may be slow
        return self._context

    def _renew(self) -> None:
        is_new = self._files.renew()
        version = self._version_now()
        if version != self._version:
            self._version = version
            before = self._authorities
            try:
                self._authorities = self._read()
                self._context = self._new()
            except (OSError, ValueError, ssl.SSLError) as error:
                self._authorities = before
                _log.warning(
                    "new client authorities rejected, those before stay in effect",
                    flag=_AUTHORITY_FLAG,
                    reason=_reason(self._path, error),
                )
            else:
                _log.info("client authorities changed", file=str(self._path))
        if is_new:
            self._context = self._new()

    def _new(self) -> ssl.SSLContext:
        context = server_context(*self._files.pair, ssl.TLSVersion.TLSv1_2, alpn="http/1.1")
        if self._authorities:
            context.load_verify_locations(cadata=self._authorities)
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def _read(self) -> str:
        """Return the authorities; empty without a file."""
        if self._path is None:
            return ""
        content = read_regular(self._path, _MOST_BYTES).data
        if len(content) > _MOST_BYTES:
            raise ValueError(f"has more than {_MOST_BYTES} bytes")
        text = content.decode("ascii", "replace")
        if "-----BEGIN CERTIFICATE-----" not in text:
            raise ValueError("has no certificate")
        return text

    def _version_now(self) -> tuple[int, int, int] | None:
        """Return what changes with the file; None where there is none."""
        try:
            status = None if self._path is None else self._path.stat()
        except OSError:
            return None
        return None if status is None else (status.st_mtime_ns, status.st_size, status.st_ino)


def _reason(path: Path | None, error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return f"{path} has a certificate that cannot be read"
    return f"{path} cannot be read: {error.strerror}" if isinstance(error, OSError) else f"{path} {error}"
