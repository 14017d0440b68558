# SPDX-License-Identifier: Apache-2.0
"""Certificates as an operator writes them: into a directory, or as Kubernetes mounts a secret."""

import datetime as dt
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tests.support import config_files


def new_pair(host: str = "localhost") -> tuple[bytes, bytes]:
    """A key and its certificate, which is its own authority, for a host name or an IP address."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, f"of the operator's own, for {host}")])
    try:
        subject: x509.GeneralName = x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        subject = x509.DNSName(host)
    now = dt.datetime.now(dt.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(minutes=5))
        .not_valid_after(now + dt.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([subject]), critical=False)
        .sign(key, hashes.SHA256())
        .public_bytes(serialization.Encoding.PEM)
    )
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return pem, certificate


def write(directory: Path, key: bytes, certificate: bytes) -> None:
    (directory / "tls.key").write_bytes(key)
    (directory / "tls.crt").write_bytes(certificate)


def mount(directory: Path, version: str, key: bytes, certificate: bytes) -> None:
    """Lay out a version of a secret as Kubernetes does, and swap to it with one rename."""
    config_files.mount(directory, {"tls.key": key, "tls.crt": certificate})
