# SPDX-License-Identifier: Apache-2.0
"""TLS contexts of our own server."""

import asyncio
import ssl
from pathlib import Path

from epp.extproc.http2.tls import server_context
from epp.extproc.settings import TlsVersion
from epp.extproc.tls import CertificateFiles, self_signed
from epp.runtime.followed_files import RELOADS

_VERSIONS = {TlsVersion.TLS_1_2: ssl.TLSVersion.TLSv1_2, TlsVersion.TLS_1_3: ssl.TLSVersion.TLSv1_3}


class TlsContexts:
    """Call it for the context of each new connection.

    With `reload`, that has the pair that is in the files by then; without, the one that was there at the start, or at
    the last SIGHUP. Open connections stay as they are.
    Raises ConfigurationError when the files cannot be read or are no pair.
    """

    def __init__(self, cert_path: Path | None, min_version: TlsVersion, ciphers: str = "", *, reload: bool) -> None:
        self._min_version = _VERSIONS[min_version]
        self._ciphers = ciphers
        self._files = None if cert_path is None else CertificateFiles(cert_path)
        self._reload = reload
        self._reloads = RELOADS.count
        self._context = self._new(self_signed() if self._files is None else self._files.pair)

    async def __call__(self) -> ssl.SSLContext:
        """Return the context for a connection that is accepted now."""
        if self._files is not None and (self._reload or self._reloads != RELOADS.count):
            self._reloads = RELOADS.count
            await asyncio.to_thread(self._renew)  # file systems may be slow
        return self._context

    def _renew(self) -> None:
        if self._files is not None and self._files.renew():
            self._context = self._new(self._files.pair)

    def _new(self, pair: tuple[bytes, bytes]) -> ssl.SSLContext:
        return server_context(*pair, self._min_version, self._ciphers)
