# SPDX-License-Identifier: Apache-2.0
"""The metrics page of a real picker over HTTPS, with certificates of servers and of clients that change."""

import socket
import ssl
from functools import partial
from pathlib import Path

import aiohttp
import pytest

from tests.support.certificates import mount, new_pair, write
from tests.support.serving import PLAIN, Served, serving
from tests.support.waiting import until

TOKEN = "a-token-of-this-test-alone"  # noqa: S105  of this test alone


def trusting(certificate: bytes, client: Path | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=certificate.decode())
    if client is not None:
        context.load_cert_chain(client / "tls.crt", client / "tls.key")
    return context


async def status(served: Served, context: ssl.SSLContext, token: str = "") -> int:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    url = f"https://localhost:{served.metrics_port}/metrics"
    async with aiohttp.ClientSession() as http, http.get(url, headers=headers, ssl=context) as page:
        await page.read()
        return page.status


async def is_served(served: Served, context: ssl.SSLContext, token: str = "") -> bool:
    try:
        return await status(served, context, token) == 200
    except aiohttp.ClientError:
        return False


async def test_page_is_served_over_https_with_the_certificate_of_now(sim, tmp_path):
    key, certificate = new_pair()
    mount(tmp_path, "one", key, certificate)
    token = tmp_path / "token"
    token.write_text(TOKEN)
    async with serving(sim, PLAIN, f"--metrics-cert-dir={tmp_path}", f"--metrics-token-file={token}") as served:
        assert await status(served, trusting(certificate), TOKEN) == 200
        assert await status(served, trusting(certificate)) == 401
        async with aiohttp.ClientSession() as http:
            with pytest.raises(aiohttp.ClientError):
                await http.get(f"http://127.0.0.1:{served.metrics_port}/metrics")
        renewed_key, renewed = new_pair()
        mount(tmp_path, "two", renewed_key, renewed)
        assert await is_served(served, trusting(renewed), TOKEN)
        assert not await is_served(served, trusting(certificate), TOKEN)


async def test_page_is_for_clients_with_a_certificate_of_the_authorities_of_now(sim, tmp_path):
    known, stranger, server = (tmp_path / name for name in ("known", "stranger", "server"))
    pairs = {}
    for directory in (known, stranger, server):
        directory.mkdir()
        pairs[directory] = new_pair()
        write(directory, *pairs[directory])
    authorities = tmp_path / "authorities.pem"
    authorities.write_bytes(pairs[known][1])
    flags = (f"--metrics-cert-dir={server}", f"--metrics-client-ca-file={authorities}")
    async with serving(sim, PLAIN, *flags) as served:
        trusts = partial(trusting, pairs[server][1])
        assert await is_served(served, trusts(known))
        assert not await is_served(served, trusts(stranger))
        assert not await is_served(served, trusts())
        authorities.write_text("no certificate")
        assert await is_served(served, trusts(known))  # those before stay in effect
        await served.command.says("authorities rejected")
        authorities.write_bytes(pairs[stranger][1])
        assert await is_served(served, trusts(stranger))
        assert not await is_served(served, trusts(known))


async def test_clients_that_do_not_finish_a_handshake_hold_up_no_other(sim, tmp_path):
    key, certificate = new_pair()
    write(tmp_path, key, certificate)
    token = tmp_path / "token"
    token.write_text(TOKEN)
    flags = (f"--metrics-cert-dir={tmp_path}", f"--metrics-token-file={token}", "--metrics-max-connections=20")
    async with serving(sim, PLAIN, *flags) as served:
        silent = [socket.create_connection(("127.0.0.1", served.metrics_port)) for _ in range(100)]
        try:
            for _ in range(3):
                assert await status(served, trusting(certificate), TOKEN) == 200
        finally:
            for each in silent:
                each.close()
        await until(partial(is_served, served, trusting(certificate), TOKEN), "the page is still served")
