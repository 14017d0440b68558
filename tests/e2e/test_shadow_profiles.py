# SPDX-License-Identifier: Apache-2.0
"""Shadow profiles of a real picker behind a real Envoy: agreement on /metrics and in records, and broken ones."""

import json
from pathlib import Path

import aiohttp
import pytest

from tests.support.commands import Command, command
from tests.support.config_files import picker_config
from tests.support.serving import health_on, metrics_on
from tests.support.world import MODEL, pool_of, until

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


FAULTS = ("time.sleep(0.2)", "raise SystemExit")


def config(directory: Path, scorer: str, more: str = "") -> Path:
    path = directory / "shadow.yaml"
    path.write_text(CONFIG.format(shadows="tryout", scorer=scorer, more=more))
    return path


async def url_of(gateway: Command) -> str:
    return (await gateway.says("listening on")).split()[2]


async def ask(http: aiohttp.ClientSession, url: str, request_id: str) -> int:
    body = {"model": MODEL, "prompt": "hello", "max_tokens": 1}
    async with http.post(f"{url}/v1/completions", json=body, headers={"x-request-id": request_id}) as answer:
        await answer.read()
        return answer.status


async def runs_on(port: int) -> dict[str, float]:
    """Return the runs by outcome."""
    found = (await metrics_on(port)).get("llm_d_epp_shadow_runs_total", {})
    return {next(one[8:] for one in labels if one.startswith("outcome=")): value for labels, value in found.items()}


async def test_gie_9_agreement_shows_on_metrics_and_in_records(simulated, tmp_path):
    sims = await simulated("a", "b")
    endpoints = pool_of(sims)
    path = config(tmp_path, "active-request-scorer")
    flags = ("--listen=127.0.0.1:0", "--endpoints", endpoints, "--metrics-port=0", "--admin-port=0", "-v=1")
    lines = tmp_path / "decisions.jsonl"
    recording = ("--decision-sample-rate=1", f"--decision-file={lines}")
    async with (
        command("gateway", *flags, f"--config-file={path}", *recording) as gateway,
        aiohttp.ClientSession() as http,
    ):
        url = await url_of(gateway)
        ready = json.loads(await gateway.says('"msg":"ready"'))
        metrics = int(ready["metrics"].rpartition(":")[2])
        for number in range(20):
            assert await ask(http, url, f"r{number}") == 200

        async def all_ran() -> bool:
            return sum((await runs_on(metrics)).values()) == 20

        await until(all_ran, "every request has had its shadow")
        records: list[dict] = []

        async def all_recorded() -> bool:  # records are built after the runs, in a share of the loop's time
            async with http.get(f"http://{ready['admin']}/api/decisions?limit=100") as found:
                records[:] = (await found.json())["decisions"]
            return all("shadows" in record for record in records)

        await until(all_recorded, "every record has the run of its shadow")
        shadows = [shadow for record in records for shadow in record["shadows"]]
        assert len(shadows) == len(records) == 20
        assert {shadow["profile"] for shadow in shadows} == {"tryout"}
        agreeing = sum(shadow.get("agrees", False) for shadow in shadows)
        assert agreeing == (await runs_on(metrics))["agrees"]
        assert 0 < agreeing < 20  # a random pick among two

        def written() -> list[dict]:
            return [json.loads(line)["shadows"] for line in lines.read_text().splitlines()]

        await until(lambda: len(written()) == 20, "every decision is in the file")
        assert sum(shadow.get("agrees", False) for (shadow,) in written()) == agreeing


@pytest.mark.parametrize("fault", FAULTS)
async def test_gie_9_shadow_that_is_slow_or_raises_stops_no_request(simulated, tmp_path, fault):
    sims = await simulated("a")
    (tmp_path / "broken.py").write_text(BROKEN.format(fault=fault))
    path = config(tmp_path, "broken", '- {type: "broken:Broken", name: broken}')
    flags = ("--listen=127.0.0.1:0", "--endpoints", f"a={sims['a'].address}", "--metrics-port=0", "-v=1")
    async with (
        command(
            "gateway", *flags, f"--config-file={path}", "--allow-plugin-modules=broken", PYTHONPATH=str(tmp_path)
        ) as gateway,
        aiohttp.ClientSession() as http,
    ):
        url = await url_of(gateway)
        port = int(json.loads(await gateway.says('"msg":"ready"'))["metrics"].rpartition(":")[2])
        for number in range(10):
            assert await ask(http, url, f"r{number}") == 200
        slow = not fault.startswith("raise")
        outcome, least = ("timeout", 5) if slow else ("failed", 10)

        async def all_ran() -> bool:
            return (await runs_on(port))[outcome] >= least

        await until(all_ran, "shadows have run")
        assert await ask(http, url, "last") == 200
        _, shown = await health_on(port)
        assert shown["ready"]
        assert bool(shown.get("shadow_profiles_disabled")) == slow
        assert not slow or "shadow profile disabled" in str(gateway)
