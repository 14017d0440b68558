# SPDX-License-Identifier: Apache-2.0
"""Cipher suites as Go names them, for OpenSSL."""

import ssl

import pytest

from epp.extproc.tls import openssl_ciphers


def test_suites_of_tls_1_2_are_renamed_and_those_of_1_3_are_always_on():
    text = "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256, TLS_AES_128_GCM_SHA256,TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305"
    assert openssl_ciphers(text) == "ECDHE-RSA-AES128-GCM-SHA256:ECDHE-ECDSA-CHACHA20-POLY1305"
    assert openssl_ciphers("TLS_AES_128_GCM_SHA256") == ""


@pytest.mark.parametrize("exchange", ["ECDSA", "RSA"])
@pytest.mark.parametrize("cipher", ["AES_128_GCM_SHA256", "AES_256_GCM_SHA384", "CHACHA20_POLY1305_SHA256"])
def test_openssl_knows_every_name(exchange, cipher):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    name = openssl_ciphers(f"TLS_ECDHE_{exchange}_WITH_{cipher}")
    context.set_ciphers(name)
    assert name in [known["name"] for known in context.get_ciphers()]


@pytest.mark.parametrize("name", ["TLS_RSA_WITH_AES_128_CBC_SHA", "ECDHE-RSA-AES128-GCM-SHA256", "x"])
def test_other_names_are_refused(name):
    with pytest.raises(ValueError, match=f"'{name}' is no cipher suite that HTTP/2 allows: write some of TLS_ECDHE"):
        openssl_ciphers(name)
