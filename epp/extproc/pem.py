# SPDX-License-Identifier: Apache-2.0
"""Keys and certificates in PEM: validation, expiry, and self-signed pairs.

This is the only module that imports cryptography, which takes 10 MB. As a script, it prints a new key and certificate.
"""

import datetime as dt
import sys

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

_BEGIN = b"-----BEGIN CERTIFICATE-----"
_VALID_FOR = dt.timedelta(days=3650)


def check_pair(key: bytes, certificate: bytes) -> None:
    """Raise ValueError unless key and certificate are valid PEM and belong together."""
    try:
        private = serialization.load_pem_private_key(key, None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ValueError("tls.key has no unencrypted private key in PEM") from error
    try:
        chain = x509.load_pem_x509_certificates(certificate)
        public = chain[0].public_key()
    except (ValueError, UnsupportedAlgorithm) as error:
        raise ValueError("tls.crt has no certificate in PEM") from error
    if certificate.count(_BEGIN) != len(chain):
        raise ValueError("tls.crt ends within a certificate: write the whole file")
    if public != private.public_key():
        raise ValueError("tls.key does not belong to the first certificate of tls.crt")


def expiry(certificate: bytes) -> str:
    """Return the time in UTC at which the first certificate expires."""
    leaf, *_ = x509.load_pem_x509_certificates(certificate)
    return leaf.not_valid_after_utc.isoformat()


def self_signed() -> tuple[bytes, bytes]:
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


if __name__ == "__main__":
    sys.stdout.buffer.write(b"".join(self_signed()))
