# SPDX-License-Identifier: Apache-2.0
"""Certificates of the server: from files, read again as they change, or self-signed."""

import datetime as dt
from pathlib import Path
from threading import Lock

import structlog
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from epp.framework import ConfigurationError

_log = structlog.get_logger()

_VALID_FOR = dt.timedelta(days=3650)
_FILES = ("tls.key", "tls.crt")

_Marks = tuple[tuple[int, int, int, int], ...]


class CertificateFiles:
    """A key and its certificate on disk, which may be replaced at any time, file by file or by a symlink's swap."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lock = Lock()
        try:
            self._marks = self._look()
            self.pair = self._read()
            """Key and certificate chain, PEM; the last ones that belonged together."""
        except OSError as error:
            raise ConfigurationError(
                f"--cert-path {directory}: {error.strerror}: {error.filename}; it must hold tls.crt and tls.key"
            ) from error
        except ValueError as error:
            raise ConfigurationError(f"--cert-path {directory}: {error}") from error

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
            _log.info("certificate renewed", cert_path=str(self._directory), expires=_expiry(pair[1]))
        return renewed

    def _look(self) -> _Marks:
        """Return what tells one version of the files from another without reading them."""
        stats = [(self._directory / name).stat() for name in _FILES]
        return tuple((stat.st_dev, stat.st_ino, stat.st_mtime_ns, stat.st_size) for stat in stats)

    def _read(self) -> tuple[bytes, bytes]:
        key, certificate = ((self._directory / name).read_bytes() for name in _FILES)
        _check_pair(key, certificate)
        return key, certificate


def _check_pair(key: bytes, certificate: bytes) -> None:
    try:
        private = serialization.load_pem_private_key(key, None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ValueError("tls.key holds no unencrypted private key in PEM") from error
    try:
        leaf, *_ = x509.load_pem_x509_certificates(certificate)
        public = leaf.public_key()
    except (ValueError, UnsupportedAlgorithm) as error:
        raise ValueError("tls.crt holds no certificate in PEM") from error
    if public != private.public_key():
        raise ValueError("tls.key does not belong to the first certificate of tls.crt")


def _expiry(certificate: bytes) -> str:
    leaf, *_ = x509.load_pem_x509_certificates(certificate)
    return leaf.not_valid_after_utc.isoformat()


def self_signed() -> tuple[bytes, bytes]:
    """Return a new key and its certificate, PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "inference-epp")])
    now = dt.datetime.now(dt.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(minutes=5))
        .not_valid_after(now + _VALID_FOR)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    return (
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
        certificate.public_bytes(serialization.Encoding.PEM),
    )
