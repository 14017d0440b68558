# SPDX-License-Identifier: Apache-2.0
"""The state of plugins of a running picker, over HTTP."""

import asyncio
import json
import socket
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from tests.support.config_files import picker_config
from tests.support.echo import chat, echo
from tests.support.gateways import gateway_of
from tests.support.serving import PLAIN, serving

CONFIG = picker_config("""
plugins:
- {type: openai-parser}
- {type: prefix-cache-scorer}
- {type: no-hit-lru-scorer}
- {type: inflight-load-producer}
- {type: "telling:Telling", name: telling}
schedulingProfiles:
- name: default
  plugins: [{pluginRef: prefix-cache-scorer}, {pluginRef: no-hit-lru-scorer}, {pluginRef: telling}]
dataLayer: {injectDefaults: false}
""")
TELLING = '''
import numpy as np
from epp.framework import Scorer


class Telling(Scorer):
    """Fails to tell its state."""

    plugin_type = "telling"

    def score(self, request, candidates):
        return np.ones(len(candidates))

    def dump_state(self, snapshot):
        raise ValueError("no state today")
'''
TOKEN = "a-secret-of-sixteen-and-more"  # noqa: S105  of this test alone


async def get(port: int, path: str, host: str = "127.0.0.1", **headers: str) -> tuple[int, bytes]:
    def ask() -> tuple[int, bytes]:
        try:
            with urlopen(Request(f"http://{host}:{port}{path}", headers=headers), timeout=60) as page:
                return page.status, page.read()
        except HTTPError as refused:
            return refused.code, refused.read()

    return await asyncio.to_thread(ask)


async def test_state_of_plugins_in_the_form_of_the_reference(tmp_path: Path):
    (tmp_path / "telling.py").write_text(TELLING)
    async with (
        echo() as server,
        gateway_of(
            f"--endpoints=only={server.address}",
            f"--config-text={CONFIG}",
            "--allow-plugin-modules=telling",
            PYTHONPATH=str(tmp_path),
        ) as gateway,
    ):
        headers = {"content-type": "application/json", "answer-bytes": "30", "answer-as": "whole"}
        assert (await gateway.post("/v1/chat/completions", chat(4000), **headers)).status == 200
        status, body = await get(gateway.metrics_port, "/debug/plugins/state")
    assert status == 200, body
    plugins = json.loads(body)["plugins"]
    prefixes = plugins["approx-prefix-cache-producer"]
    blocks = prefixes["state"]["distinctBlocks"]
    assert blocks > 0
    assert prefixes["state"]["endpoints"] == [{"name": "only", "address": server.address, "blocks": blocks}]
    shown = {"totalEndpoints": 1, "maxEndpoints": 100, "truncated": False}
    idle = {"name": "only", "address": server.address, "requests": 0.0, "tokens": 0.0}
    assert plugins["inflight-load-producer"] == {
        "type": "inflight-load-producer",
        "state": {"endpoints": [idle], **shown},
    }
    assert plugins["no-hit-lru-scorer"]["state"]["endpoints"][0]["lastUse"] == 1
    assert plugins["openai-parser"] == {"type": "openai-parser", "message": "plugin does not support state collection"}
    assert plugins["telling"]["message"].startswith("plugin failed to report its state: ValueError: no state today")


def _own_address() -> str:
    """An address of this machine that is not its loopback; skips a test where there is none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing
        except OSError:
            pytest.skip("this machine has no address but loopback")
        return probe.getsockname()[0]


async def test_other_machines_and_pages_of_other_sites_are_refused():
    async with serving(None, "--endpoints=127.0.0.1:1", PLAIN) as served:
        port = served.metrics_port
        path = "/debug/plugins/state"
        rebound, said = await get(port, path, Host="attacker.example")
        assert (rebound, b"kubectl port-forward" in said) == (403, True)
        assert (await get(port, path, _own_address()))[0] == 403
        assert (await get(port, path, Host="localhost"))[0] == 200
        assert (await get(port, "/metrics", _own_address()))[0] == 200


async def test_token_of_the_page_opens_them_to_other_machines(tmp_path: Path):
    secret = tmp_path / "token"
    secret.write_text(TOKEN)
    async with serving(None, "--endpoints=127.0.0.1:1", PLAIN, f"--metrics-token-file={secret}") as served:
        port, address = served.metrics_port, _own_address()
        assert (await get(port, "/debug/plugins/state"))[0] == 401
        assert (await get(port, "/debug/plugins/state", address, Authorization=f"Bearer {TOKEN}"))[0] == 200
