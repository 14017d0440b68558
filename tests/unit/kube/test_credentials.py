# SPDX-License-Identifier: Apache-2.0
"""Credentials of an API server: certificates, tokens that are rotated, and commands that print them."""

import base64
import ssl

import pytest
from aiohttp import web
from structlog.testing import capture_logs

from epp.kube.access import ApiError, ApiUnreachableError, KubeApi
from tests.support import certificates
from tests.support.kube.kube_server import COLLECTION, access_to, kube_server, kubeconfig, with_status

FIRST, SECOND = "first", "second"


@pytest.mark.parametrize("form", ["files", "data"])
async def test_client_certificate_is_shown_to_the_server(tmp_path, form):
    key, certificate = certificates.new_pair("127.0.0.1")
    certificates.write(tmp_path, key, certificate)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(tmp_path / "tls.crt"))
    context.load_cert_chain(tmp_path / "tls.crt", tmp_path / "tls.key")
    context.verify_mode = ssl.CERT_REQUIRED
    user = {"client_certificate": "tls.crt", "client_key": "tls.key"}
    if form == "data":
        encoded = {name: base64.b64encode(each).decode() for name, each in (("certificate", certificate), ("key", key))}
        user = {f"client_{name}_data": text for name, text in encoded.items()}
    async with kube_server(context) as server:
        authority = {"certificate-authority": "tls.crt"}
        api = KubeApi(kubeconfig(tmp_path / "config", server.url, cluster=authority, **user))
        assert b"resourceVersion" in await api.request("GET", COLLECTION)
        await api.close()
        anonymous = KubeApi(kubeconfig(tmp_path / "config", server.url, cluster=authority))
        with pytest.raises(ApiUnreachableError):
            await anonymous.request("GET", COLLECTION)
        await anonymous.close()


async def test_token_file_is_read_again_when_the_token_is_refused(server, tmp_path):
    token = tmp_path / "token"
    token.write_text("first\n")
    api = KubeApi(kubeconfig(tmp_path / "config", server.url, tokenFile=str(token)))
    server.token = FIRST
    await api.request("GET", COLLECTION)
    token.write_text("second\n")
    await api.request("GET", COLLECTION)
    server.token = SECOND
    await api.request("GET", COLLECTION)
    assert server.tokens == ["Bearer first", "Bearer first", "Bearer first", "Bearer second"]
    await api.close()


async def test_kubeconfig_is_read_again_when_its_token_is_refused(server, tmp_path):
    api = KubeApi(kubeconfig(tmp_path / "config", server.url, token=FIRST))
    server.token = SECOND
    kubeconfig(tmp_path / "config", server.url, token=SECOND)
    with pytest.raises(ApiError) as refused:
        await api.request("GET", COLLECTION)
    assert refused.value.status == 401
    await api.request("GET", COLLECTION)
    await api.close()


async def test_service_account_is_read_again_when_its_token_is_refused(tmp_path, monkeypatch):
    monkeypatch.delenv("KUBECONFIG", raising=False)
    certificates.write(tmp_path, *certificates.new_pair("127.0.0.1"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "tls.crt", tmp_path / "tls.key")
    (tmp_path / "ca.crt").symlink_to("tls.crt")
    (tmp_path / "token").write_text("first")
    (tmp_path / "namespace").write_text("ours")
    async with kube_server(context) as server:
        server.token = FIRST
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", server.url.rpartition(":")[2])
        api = KubeApi(service_account=tmp_path)
        assert (api.server, api.namespace) == (server.url, "ours")
        await api.request("GET", COLLECTION)
        server.token = SECOND
        (tmp_path / "token").write_text("second")
        await api.request("GET", COLLECTION)
        await api.close()


async def test_credentials_that_cannot_be_read_any_more_are_an_error_and_the_earlier_ones_stay(server, tmp_path):
    path = kubeconfig(tmp_path / "config", server.url, token=FIRST)
    api = KubeApi(path)
    server.token = SECOND
    path.write_text("a: [")
    with capture_logs() as logs, pytest.raises(ApiError):
        await api.request("GET", COLLECTION)
    (said,) = logs
    assert said["event"] == "Kubernetes credentials not readable, the earlier ones stay in effect"
    server.token = FIRST
    await api.request("GET", COLLECTION)
    await api.close()


async def test_token_file_that_goes_away_is_an_unreachable_server_with_its_reason(server, tmp_path):
    token = tmp_path / "token"
    token.write_text("first")
    api = KubeApi(kubeconfig(tmp_path / "config", server.url, tokenFile=str(token)))
    for spoil in (token.unlink, lambda: token.write_bytes(b"\xff")):
        spoil()
        with capture_logs(), pytest.raises(ApiUnreachableError, match="no credentials: "):
            await api.request("GET", COLLECTION)
    await api.close()


@pytest.mark.parametrize("command", ["false", "true", "/no/such/command"])
async def test_command_that_prints_no_token_is_an_unreachable_server_with_its_reason(server, tmp_path, command):
    exec_user = {"apiVersion": "client.authentication.k8s.io/v1beta1", "command": command}
    api = KubeApi(kubeconfig(tmp_path / "config", server.url, exec=exec_user))
    with pytest.raises(ApiUnreachableError, match="no credentials: "):
        await api.request("GET", COLLECTION)
    await api.close()


async def test_token_is_in_no_message(server, tmp_path):
    api = KubeApi(kubeconfig(tmp_path / "config", server.url, token=f"{FIRST}\nof two lines"))
    with pytest.raises(ApiUnreachableError) as refused:
        await api.request("GET", COLLECTION)
    assert str(refused.value) == f"{server.url}: the token has invalid characters"
    await api.close()


async def test_open_watch_outlives_new_credentials(server, tmp_path):
    async with access_to(server, tmp_path) as api:
        await server.put("a", "red")
        async with api.stream(COLLECTION, {"watch": "true", "resourceVersion": "10"}) as reads:
            assert b"ADDED" in (await anext(reads))[0]
            server.faults.append(with_status(401))
            with pytest.raises(ApiError):
                await api.request("GET", COLLECTION)
            await server.put("b", "red")
            assert b'"b"' in (await anext(reads))[0]
            server.faults.append(_reset)
            with pytest.raises(ApiUnreachableError):
                await api.request("GET", COLLECTION)


async def _reset(request: web.Request) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()
