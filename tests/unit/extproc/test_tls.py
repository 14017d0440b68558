# SPDX-License-Identifier: Apache-2.0
"""A certificate on disk, replaced in the ways that operators and Kubernetes replace one; and cipher suites."""

import datetime as dt
import os
import ssl
import sys

import pytest
from cryptography import x509
from structlog.testing import capture_logs

from epp.extproc.pem import check_pair, expiry
from epp.extproc.settings import TlsVersion
from epp.extproc.tls import CertificateFiles, TlsContexts, openssl_ciphers, self_signed
from epp.framework import ConfigurationError
from epp.runtime.followed_files import RELOADS
from tests.support.certificates import mount, new_pair, write

TAKEN = "certificate renewed"
KEPT = "new certificate rejected, the previous one stays in effect"


def rewrite(path, content: bytes, *, second: int) -> None:
    """Write in place, at a time of its own: file systems count in ticks longer than a test."""
    path.write_bytes(content)
    os.utime(path, (second, second))


def events(logs) -> list[str]:
    return [entry["event"] for entry in logs]


def test_swapped_secret_is_taken_with_a_word(tmp_path):
    new = new_pair()
    mount(tmp_path, "1", *new_pair())
    files = CertificateFiles(tmp_path)
    mount(tmp_path, "2", *new)
    with capture_logs() as logs:
        assert files.renew()
        assert not files.renew()
    assert files.pair == new
    expires = x509.load_pem_x509_certificate(new[1]).not_valid_after_utc.isoformat()
    assert [(entry["event"], entry["expires"]) for entry in logs] == [(TAKEN, expires)]


def test_secret_that_stays_or_is_swapped_for_the_same_pair_is_no_news(tmp_path):
    pair = new_pair()
    mount(tmp_path, "1", *pair)
    files = CertificateFiles(tmp_path)
    assert not files.renew()
    mount(tmp_path, "2", *pair)
    assert not files.renew()
    assert files.pair == pair


def test_half_written_pair_is_said_once_and_taken_when_whole(tmp_path):
    old, (key, certificate) = new_pair(), new_pair()
    write(tmp_path, *old)
    files = CertificateFiles(tmp_path)
    rewrite(tmp_path / "tls.crt", certificate, second=1)
    with capture_logs() as logs:
        assert [files.renew() for _ in range(3)] == [False, False, False]
        assert files.pair == old
        rewrite(tmp_path / "tls.key", key, second=1)
        assert files.renew()
    assert files.pair == (key, certificate)
    assert events(logs) == [KEPT, TAKEN]


async def test_without_reload_the_pair_changes_only_at_a_reload_that_an_operator_asks_for(tmp_path):
    write(tmp_path, *new_pair())
    contexts = TlsContexts(tmp_path, TlsVersion.TLS_1_2, reload=False)
    first = await contexts()
    key, certificate = new_pair()
    rewrite(tmp_path / "tls.key", key, second=1)
    rewrite(tmp_path / "tls.crt", certificate, second=1)
    assert await contexts() is first
    RELOADS.request()
    assert await contexts() is not first


def test_files_that_vanish_are_said_once_and_welcome_back(tmp_path):
    pair = new_pair()
    write(tmp_path, *pair)
    files = CertificateFiles(tmp_path)
    (tmp_path / "tls.key").rename(tmp_path / "elsewhere")
    with capture_logs() as logs:
        assert [files.renew() for _ in range(3)] == [False, False, False]
        (tmp_path / "elsewhere").rename(tmp_path / "tls.key")
        assert not files.renew()
    assert files.pair == pair
    assert events(logs) == [KEPT]


def test_chain_counts_by_its_first_certificate(tmp_path):
    key, leaf = new_pair()
    _, issuer = new_pair()
    write(tmp_path, key, leaf + issuer)
    assert CertificateFiles(tmp_path).pair == (key, leaf + issuer)
    write(tmp_path, key, issuer + leaf)
    with pytest.raises(ConfigurationError, match="does not belong to the first certificate"):
        CertificateFiles(tmp_path)


@pytest.mark.parametrize(
    ("key", "certificate", "problem"),
    [
        (b"x", new_pair()[1], "tls.key has no unencrypted private key in PEM"),
        (new_pair()[0], b"", "tls.crt has no certificate in PEM"),
        (new_pair()[0], b"-----BEGIN CERTIFICATE-----\nx\n-----END CERTIFICATE-----\n", "tls.crt has no certificate"),
    ],
    ids=["no key", "no certificate", "garbage"],
)
def test_files_of_another_kind_are_named(tmp_path, key, certificate, problem):
    write(tmp_path, key, certificate)
    with pytest.raises(ConfigurationError, match=f"^--cert-path {tmp_path}: {problem}"):
        CertificateFiles(tmp_path)


@pytest.mark.parametrize("executable", [sys.executable, "/there/is/no/python"])
def test_self_signed_certificate_is_a_pair_with_or_without_a_child_process(executable, monkeypatch):
    monkeypatch.setattr("epp.extproc.tls.sys.executable", executable)
    key, certificate = self_signed()
    check_pair(key, certificate)
    assert dt.datetime.fromisoformat(expiry(certificate)) > dt.datetime.now(dt.UTC) + dt.timedelta(days=3600)


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
    with pytest.raises(ValueError, match=f"'{name}' is not a cipher suite that HTTP/2 allows: write some of TLS_ECDHE"):
        openssl_ciphers(name)
