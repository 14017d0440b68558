# SPDX-License-Identifier: Apache-2.0
"""Certificates of the server: from files, read again as they change, or self-signed."""

import subprocess
import sys
from pathlib import Path
from threading import Lock

import structlog

from epp.framework import ConfigurationError
from epp.framework.files import read_regular

_log = structlog.get_logger()

_MOST_SECONDS = 60
_MOST_BYTES = 1024 * 1024
_FILES = ("tls.key", "tls.crt")

_Marks = tuple[tuple[int, int, int, int], ...]


class CertificateFiles:
    """A key and its certificate on disk, which may be replaced at any time, file by file or by a symlink's swap."""

    def __init__(self, directory: Path, flag: str = "--cert-path") -> None:
        """Read them; raises ConfigurationError. `flag` is the one that names the directory."""
        self._directory = directory
        self._lock = Lock()
        try:
            self._marks = self._look()
            self.pair = self._read()
            """Key and certificate chain, PEM; the last ones that belonged together."""
        except OSError as error:
            raise ConfigurationError(
                f"{flag} {directory}: {error.strerror}: {error.filename}; it must hold tls.crt and tls.key"
            ) from error
        except ValueError as error:
            raise ConfigurationError(f"{flag} {directory}: {error}") from error

    def renew(self) -> bool:
        """Read the files again if they changed; return whether there is a new pair. May be called from any thread.

        Files that are gone, unreadable or no pair leave the old pair in use, with one warning.
        """
        with self._lock:
            marks: _Marks | None = None
            try:
                marks = self._look()
                if marks == self._marks:
                    return False
                pair = self._read()
            except (OSError, ValueError) as error:
                if marks is None and self._marks == ():
                    return False
                self._marks = marks or ()
                _log.warning(
                    "new certificate rejected, the one before it stays in effect",
                    cert_path=str(self._directory),
                    problem=str(error),
                )
                return False
            self._marks = marks
            renewed = pair != self.pair
            self.pair = pair
        if renewed:
            from epp.extproc.certificates import expiry  # noqa: PLC0415  loads cryptography

            _log.info("certificate renewed", cert_path=str(self._directory), expires=expiry(pair[1]))
        return renewed

    def _look(self) -> _Marks:
        """Return what tells one version of the files from another without reading them."""
        stats = [(self._directory / name).stat() for name in _FILES]
        return tuple((stat.st_dev, stat.st_ino, stat.st_mtime_ns, stat.st_size) for stat in stats)

    def _read(self) -> tuple[bytes, bytes]:
        key, certificate = (_content(self._directory / name) for name in _FILES)
        from epp.extproc.certificates import check_pair  # noqa: PLC0415  loads cryptography

        check_pair(key, certificate)
        return key, certificate


def _content(path: Path) -> bytes:
    content = read_regular(path, _MOST_BYTES).data
    if len(content) > _MOST_BYTES:
        raise ValueError(f"{path.name} has more than {_MOST_BYTES} bytes: it must hold a key or certificates in PEM")
    return content


def self_signed() -> tuple[bytes, bytes]:
    """Return a new key and its certificate, PEM: from a child process, since the library would stay in this one."""
    command = [sys.executable, "-P", "-m", "epp.extproc.certificates"]  # -P: nothing from the working directory
    try:
        made = subprocess.run(  # noqa: S603  a command without anything from outside
            command, stdin=subprocess.DEVNULL, capture_output=True, check=True, timeout=_MOST_SECONDS
        )
    except (OSError, subprocess.SubprocessError):  # no interpreter of its own, as in a bundle
        from epp.extproc import certificates  # noqa: PLC0415  loads cryptography

        return certificates.self_signed()
    key, begin, rest = made.stdout.partition(b"-----BEGIN CERTIFICATE-----")
    return key, begin + rest
