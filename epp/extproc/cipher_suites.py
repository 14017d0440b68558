# SPDX-License-Identifier: Apache-2.0
"""Cipher suites of TLS 1.2 by the names that Go and the standards give them, for OpenSSL."""

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
"""All of them are always on, as in Go."""


def openssl_ciphers(text: str) -> str:
    """Return a comma-separated list as OpenSSL writes it, without suites of TLS 1.3; raises ValueError."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in _TLS_1_2 and name not in _TLS_1_3:
            raise ValueError(
                f"{name!r} is no cipher suite that HTTP/2 allows: write some of "
                f"{', '.join([*_TLS_1_2, *_TLS_1_3])}, with commas between them"
            )
    return ":".join(dict.fromkeys(_TLS_1_2[name] for name in names if name in _TLS_1_2))
