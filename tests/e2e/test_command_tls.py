# SPDX-License-Identifier: Apache-2.0
"""`epp serve --cert-path` from outside: whose certificate is shown, when it changes, and which TLS is spoken."""

import socket
import ssl

import grpc
import pytest

from tests.support.certificates import mount, new_pair
from tests.support.serving import Served, answer, ask, destination_of, exchange, serving


def shown(served: Served) -> bytes:
    return ssl.get_server_certificate(("127.0.0.1", served.grpc_port)).encode()


async def test_renewed_secret_is_shown_to_new_connections_and_open_streams_go_on(sim, tmp_path):
    old, new = new_pair(), new_pair()
    mount(tmp_path, "2026_01", *old)
    async with (
        serving(sim, f"--cert-path={tmp_path}", "--enable-cert-reload") as served,
        served.trusting(old[1]) as before,
    ):
        call = exchange(before)
        await ask(call)
        mount(tmp_path, "2026_02", *new)
        assert shown(served) == new[1]
        await served.command.says('"msg":"certificate renewed"')
        async with served.trusting(new[1]) as after, served.trusting(old[1]) as outdated:
            assert await destination_of(after) == sim.address
            assert await exchange(outdated).code() is grpc.StatusCode.UNAVAILABLE
        await answer(call)
        assert await destination_of(before) == sim.address  # on the connection of old


def spoken(served: Served, version: ssl.TLSVersion, ciphers: str = "ALL:@SECLEVEL=0") -> str | None:
    """Shake hands in one version of TLS only."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_ciphers(ciphers)
    context.set_alpn_protocols(["h2"])
    context.minimum_version = context.maximum_version = version
    with socket.create_connection(("127.0.0.1", served.grpc_port)) as plain, context.wrap_socket(plain) as secured:
        return secured.version()


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1 is deprecated")
async def test_tls_1_2_is_the_oldest_that_is_spoken(sim):
    async with serving(sim, "--tls-min-version=VersionTLS12") as served:
        assert spoken(served, ssl.TLSVersion.TLSv1_3) == "TLSv1.3"
        assert spoken(served, ssl.TLSVersion.TLSv1_2) == "TLSv1.2"
        with pytest.raises(ssl.SSLError):
            spoken(served, ssl.TLSVersion.TLSv1_1)


async def test_cipher_suites_of_tls_1_2_may_be_chosen(sim):
    suite = "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256"
    async with serving(sim, f"--tls-cipher-suites={suite}", "--transport=asyncio") as served:
        assert spoken(served, ssl.TLSVersion.TLSv1_2, "ECDHE-ECDSA-CHACHA20-POLY1305") == "TLSv1.2"
        with pytest.raises(ssl.SSLError):
            spoken(served, ssl.TLSVersion.TLSv1_2, "ECDHE-ECDSA-AES128-GCM-SHA256")
