# SPDX-License-Identifier: Apache-2.0
"""TLS of the server: certificates from files or self-signed, contexts, and cipher suites."""

import asyncio
import os
import ssl
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import structlog

from epp.extproc.settings import TlsVersion
from epp.framework import ConfigurationError
from epp.framework.files import read_regular
from epp.runtime.followed_files import RELOADS, FollowedFile

_log = structlog.get_logger()

_MOST_SECONDS = 60
_MOST_BYTES = 1024 * 1024
_FILES = ("tls.key", "tls.crt")
ALPN = "h2"
_TLS_1_2_CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""Forward secrecy and authenticated encryption, as RFC 9113 requires; all suites of TLS 1.3 have both."""
_KEY_EXCHANGE = ("ECDHE_ECDSA", "ECDHE_RSA")
_CIPHERS = {
    "AES_128_GCM_SHA256": "AES128-GCM-SHA256",
    "AES_256_GCM_SHA384": "AES256-GCM-SHA384",
    "CHACHA20_POLY1305_SHA256": "CHACHA20-POLY1305",
    "CHACHA20_POLY1305": "CHACHA20-POLY1305",
}
_TLS_1_2 = {
    f"TLS_{exchange}_WITH_{cipher}": f"{exchange.replace('_', '-')}-{name}"
    for exchange in _KEY_EXCHANGE
    for cipher, name in _CIPHERS.items()
}
_TLS_1_3 = ("TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256")
"""Always enabled, as in Go."""


class CertificateFiles:
    """A key and its certificate on disk; both may be replaced at any time, separately or by a symbolic link."""

    def __init__(self, directory: Path, flag: str = "--cert-path") -> None:
        """Read the files; raises ConfigurationError. `flag` is the command line flag for the directory."""
        self._directory = directory
        try:
            self._files = FollowedFile(partial(_read_pair, directory), *(directory / name for name in _FILES))
        except OSError as error:
            raise ConfigurationError(
                f"{flag} {directory}: {error.strerror}: {error.filename}; the directory must have tls.crt and tls.key"
            ) from error
        except ValueError as error:
            raise ConfigurationError(f"{flag} {directory}: {error}") from error

    @property
    def pair(self) -> tuple[bytes, bytes]:
        """Key and certificate chain, PEM; the last valid pair."""
        return self._files.value

    def renew(self) -> bool:
        """Read the files again if they changed; return whether there is a new pair. May be called from any thread.

        Missing, unreadable or mismatched files leave the old pair in use, with one warning.
        """
        if not self._files.renew(self._reject):
            return False
        from epp.extproc.pem import expiry  # noqa: PLC0415  loads cryptography

        _log.info("certificate renewed", cert_path=str(self._directory), expires=expiry(self.pair[1]))
        return True

    def _reject(self, error: Exception) -> None:
        _log.warning(
            "new certificate rejected, the previous one stays in effect",
            cert_path=str(self._directory),
            problem=str(error),
        )


def _read_pair(directory: Path) -> tuple[bytes, bytes]:
    key, certificate = (_content(directory / name) for name in _FILES)
    from epp.extproc.pem import check_pair  # noqa: PLC0415  loads cryptography

    check_pair(key, certificate)
    return key, certificate


def _content(path: Path) -> bytes:
    content = read_regular(path, _MOST_BYTES).data
    if len(content) > _MOST_BYTES:
        raise ValueError(f"{path.name} has more than {_MOST_BYTES} bytes: it must be a key or certificates in PEM")
    return content


def self_signed() -> tuple[bytes, bytes]:
    """Return a new key and its certificate, PEM; made by a child process to save the memory of cryptography."""
    command = [sys.executable, "-P", "-m", "epp.extproc.pem"]  # -P: nothing from the working directory
    try:
        made = subprocess.run(  # noqa: S603  a constant command
            command, stdin=subprocess.DEVNULL, capture_output=True, check=True, timeout=_MOST_SECONDS
        )
    except (OSError, subprocess.SubprocessError):  # a bundle has no interpreter
        from epp.extproc import pem  # noqa: PLC0415  loads cryptography

        return pem.self_signed()
    key, begin, rest = made.stdout.partition(b"-----BEGIN CERTIFICATE-----")
    return key, begin + rest


_VERSIONS = {TlsVersion.TLS_1_2: ssl.TLSVersion.TLSv1_2, TlsVersion.TLS_1_3: ssl.TLSVersion.TLSv1_3}


class TlsContexts:
    """Returns the TLS context for each new connection.

    With `reload`, the context has the current pair of the files, otherwise the pair at the start or at the last
    SIGHUP. Open connections are not changed.
    Raises ConfigurationError when the files cannot be read or do not belong together.
    """

    def __init__(self, cert_path: Path | None, min_version: TlsVersion, ciphers: str = "", *, reload: bool) -> None:
        self._new = partial(server_context, min_version=_VERSIONS[min_version], ciphers=ciphers)
        self._files = None if cert_path is None else CertificateFiles(cert_path)
        self._reload = reload
        self._reloads = RELOADS.count
        self._context = self._new(*(self_signed() if self._files is None else self._files.pair))

    async def __call__(self) -> ssl.SSLContext:
        if self._files is not None and (self._reload or self._reloads != RELOADS.count):
            self._reloads = RELOADS.count
            await asyncio.to_thread(self._renew)  # file systems may be slow
        return self._context

    def _renew(self) -> None:
        if self._files is not None and self._files.renew():
            self._context = self._new(*self._files.pair)


def server_context(
    key: bytes, certificates: bytes, min_version: ssl.TLSVersion, ciphers: str = "", *, alpn: str = ALPN
) -> ssl.SSLContext:
    """Return a context for a key and its certificate chain, both PEM; `ciphers` are OpenSSL's names for TLS 1.2."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = min_version
    context.set_alpn_protocols([alpn])
    context.set_ciphers(ciphers or _TLS_1_2_CIPHERS)
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
    with _file(certificates + b"\n" + key) as path:
        context.load_cert_chain(path)
    return context


@contextmanager
def _file(content: bytes) -> Iterator[str]:
    """Yield the path of a private file with this content, in memory if the system supports it."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("epp-tls")
        try:
            os.write(descriptor, content)
            yield f"/proc/self/fd/{descriptor}"
        finally:
            os.close(descriptor)
    else:
        with tempfile.NamedTemporaryFile() as file:
            file.write(content)
            file.flush()
            yield file.name


def openssl_ciphers(text: str) -> str:
    """Convert a comma-separated list of Go's names to OpenSSL's, without suites of TLS 1.3; raises ValueError."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in _TLS_1_2 and name not in _TLS_1_3:
            raise ValueError(
                f"{name!r} is not a cipher suite that HTTP/2 allows: write some of "
                f"{', '.join([*_TLS_1_2, *_TLS_1_3])}, with commas between them"
            )
    return ":".join(dict.fromkeys(_TLS_1_2[name] for name in names if name in _TLS_1_2))
