# SPDX-License-Identifier: Apache-2.0
"""TLS of the metrics port: its certificate, and the authorities of client certificates."""

import asyncio
import ssl
from functools import partial
from pathlib import Path

import structlog

from epp.extproc.tls import CertificateFiles, server_context
from epp.framework.errors import ConfigurationError
from epp.framework.files import read_regular
from epp.runtime.followed_files import FollowedFile

_DIRECTORY_FLAG, _AUTHORITY_FLAG = "--metrics-cert-dir", "--metrics-client-ca-file"
_MOST_BYTES = 1024 * 1024

_log = structlog.get_logger()


class PageTls:
    """Returns the context of each new connection. Changed files take effect with the next connection."""

    def __init__(self, directory: Path, client_ca_file: Path | None = None) -> None:
        """Read the files; raises ConfigurationError. Without `client_ca_file`, clients need no certificate."""
        self._files = CertificateFiles(directory, _DIRECTORY_FLAG)
        self._authorities: FollowedFile[str] | None = None
        if (path := client_ca_file) is not None:
            try:
                self._authorities = FollowedFile(partial(_read_authorities, path), path)
            except (OSError, ValueError) as error:
                raise ConfigurationError(
                    f"{_AUTHORITY_FLAG}: {_reason(error, path)}: write certificates of authorities in PEM"
                ) from error
        self._path = path
        self._context = self._new()

    async def __call__(self) -> ssl.SSLContext:
        """Return the context for a connection that is accepted now."""
        await asyncio.to_thread(self._renew)  # file systems may be slow
        return self._context

    def _renew(self) -> None:
        is_new = self._files.renew()
        if self._authorities is not None and self._authorities.renew(self._reject):
            is_new = True
            _log.info("client authorities changed", file=str(self._path))
        if is_new:
            self._context = self._new()

    def _reject(self, error: Exception) -> None:
        _log.warning(
            "new client authorities rejected, those before stay in effect",
            flag=_AUTHORITY_FLAG,
            reason=_reason(error, self._path),
        )

    def _new(self) -> ssl.SSLContext:
        context = server_context(*self._files.pair, ssl.TLSVersion.TLSv1_2, alpn="http/1.1")
        if self._authorities is not None:
            context.load_verify_locations(cadata=self._authorities.value)
            context.verify_mode = ssl.CERT_REQUIRED
        return context


def _read_authorities(path: Path) -> str:
    content = read_regular(path, _MOST_BYTES).data
    if len(content) > _MOST_BYTES:
        raise ValueError(f"has more than {_MOST_BYTES} bytes")
    text = content.decode("ascii", "replace")
    if "-----BEGIN CERTIFICATE-----" not in text:
        raise ValueError("has no certificate")
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(cadata=text)  # raises SSLError, an OSError
    return text


def _reason(error: Exception, path: Path | None) -> str:
    if isinstance(error, ssl.SSLError):
        return f"{path} has a certificate that cannot be read"
    return f"{path} cannot be read: {error.strerror}" if isinstance(error, OSError) else f"{path} {error}"
