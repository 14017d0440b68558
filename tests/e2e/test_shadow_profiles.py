# SPDX-License-Identifier: Apache-2.0
"""Shadow profiles of a real picker behind a real Envoy: agreement on /metrics and in records, and broken ones."""

import json
from pathlib import Path

import aiohttp
import pytest

from tests.support.config_files import picker_config
from tests.support.gateways import Gateway, gateway_of
from tests.support.waiting import read_until, until
from tests.support.world import MODEL, pool_of

BROKEN = """
import time
from epp.framework import Scorer

class Broken(Scorer):
    plugin_type = "broken"

    def score(self, request, candidates):
        if candidates.profile == "tryout":
            {fault}
        return candidates.slots * 0.0
"""
CONFIG = picker_config("""
plugins:
- {{type: shadow-profiles, parameters: {{profiles: [{shadows}], sampleRate: 1}}}}
- {{type: active-request-scorer}}
- {{type: max-score-picker}}
- {{type: random-picker}}
{more}
schedulingProfiles:
- name: default
  plugins: [{{pluginRef: active-request-scorer}}, {{pluginRef: max-score-picker}}]
- name: tryout
  plugins: [{{pluginRef: {scorer}}}, {{pluginRef: random-picker}}]
""")


def config(directory: Path, scorer: str, more: str = "") -> Path:
    path = directory / "shadow.yaml"
    path.write_text(CONFIG.format(shadows="tryout", scorer=scorer, more=more))
    return path


async def ask(gateway: Gateway, request_id: str) -> int:
    body = {"model": MODEL, "prompt": "hello", "max_tokens": 1}
    return (await gateway.post("/v1/completions", body, **{"x-request-id": request_id})).status


async def test_gie_9_agreement_shows_on_metrics_and_in_records(simulated, tmp_path):
    endpoints = pool_of(await simulated("a", "b"))
    lines = tmp_path / "decisions.jsonl"
    recording = ("--admin-port=0", "--decision-sample-rate=1", f"--decision-file={lines}")
    flags = (f"--endpoints={endpoints}", f"--config-file={config(tmp_path, 'active-request-scorer')}", *recording)
    async with gateway_of(*flags) as gateway, aiohttp.ClientSession() as http:
        admin = (await gateway.process.ready())["admin"]
        for number in range(20):
            assert await ask(gateway, f"r{number}") == 200
        await read_until(
            lambda: gateway.total("shadow_runs_total"), lambda total: total == 20, "every request has had its shadow"
        )

        async def records() -> list[dict]:  # which are built after the runs, in a share of the loop's time
            async with http.get(f"http://{admin}/api/decisions?limit=100") as found:
                return (await found.json())["decisions"]

        found = await read_until(
            records,
            lambda found: all("shadows" in record for record in found),
            "every record has the run of its shadow",
        )
        shadows = [shadow for record in found for shadow in record["shadows"]]
        assert len(shadows) == len(found) == 20
        assert {shadow["profile"] for shadow in shadows} == {"tryout"}
        agreeing = sum(shadow.get("agrees", False) for shadow in shadows)
        assert agreeing == await gateway.total("shadow_runs_total", "outcome=agrees")
        assert 0 < agreeing < 20  # a random pick among two

        def written() -> list[dict]:
            return [json.loads(line)["shadows"] for line in lines.read_text().splitlines()]

        await until(lambda: len(written()) == 20, "every decision is in the file")
        assert sum(shadow.get("agrees", False) for (shadow,) in written()) == agreeing


@pytest.mark.parametrize(
    ("fault", "outcome", "least"), [("time.sleep(0.2)", "timeout", 5), ("raise SystemExit", "failed", 10)]
)
async def test_gie_9_shadow_that_is_slow_or_raises_stops_no_request(sim, tmp_path, fault, outcome, least):
    (tmp_path / "broken.py").write_text(BROKEN.format(fault=fault))
    path = config(tmp_path, "broken", '- {type: "broken:Broken", name: broken}')
    flags = (f"--endpoints=a={sim.address}", f"--config-file={path}", "--allow-plugin-modules=broken")
    async with gateway_of(*flags, PYTHONPATH=str(tmp_path)) as gateway:
        for number in range(10):
            assert await ask(gateway, f"r{number}") == 200
        of_outcome = ("shadow_runs_total", f"outcome={outcome}")
        await read_until(lambda: gateway.total(*of_outcome), lambda total: total >= least, "shadows have run")
        assert await ask(gateway, "last") == 200
        _, shown = await gateway.health()
        assert shown["ready"]
        assert bool(shown.get("shadow_profiles_disabled")) == (outcome == "timeout")
        assert outcome != "timeout" or "shadow profile disabled" in str(gateway.process)
