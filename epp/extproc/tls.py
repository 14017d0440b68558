"""Server credentials: a certificate from files, or a self-signed one made at start."""

import datetime as dt
from pathlib import Path

import grpc
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from epp.framework import ConfigurationError

_VALID_FOR = dt.timedelta(days=3650)


def server_credentials(cert_path: Path | None) -> grpc.ServerCredentials:
    """Return credentials from `tls.crt` and `tls.key` in a directory, self-signed ones where there is none.

    Raises ConfigurationError when the files cannot be read.
    """
    if cert_path is None:
        key, certificate = _self_signed()
    else:
        try:
            key, certificate = (cert_path / "tls.key").read_bytes(), (cert_path / "tls.crt").read_bytes()
        except OSError as error:
            raise ConfigurationError(
                f"--cert-path {cert_path}: {error.strerror}: {error.filename}; it must hold tls.crt and tls.key"
            ) from error
    return grpc.ssl_server_credentials([(key, certificate)])


def _self_signed() -> tuple[bytes, bytes]:
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
