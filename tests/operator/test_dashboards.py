# SPDX-License-Identifier: Apache-2.0
"""A real Prometheus scrapes the demo: every panel of every dashboard has data, and every alert rule is understood."""

import asyncio
import contextlib
import json
import math
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import aiohttp
import pytest

from tests.support.commands import command
from tests.support.waiting import until

ROOT = Path(__file__).parents[2]
DASHBOARDS = sorted((ROOT / "deploy" / "grafana").glob("*.json"))
SCRAPES = """
global: {{scrape_interval: 1s, evaluation_interval: 1s}}
rule_files: ["{rules}"]
scrape_configs:
- job_name: demo
  static_configs: [{{targets: ["127.0.0.1:{port}"]}}]
"""


class Prometheus:
    """A server that scrapes one picker."""

    def __init__(self, url: str, http: aiohttp.ClientSession) -> None:
        self._url = url
        self._http = http

    async def get(self, path: str, **parameters: str) -> dict:
        async with self._http.get(f"{self._url}/api/v1/{path}", params=parameters) as answer:
            content = await answer.json()
            assert content["status"] == "success", content
            return content["data"]

    async def ready(self) -> bool:
        with contextlib.suppress(aiohttp.ClientError):
            async with self._http.get(f"{self._url}/-/ready") as answer:
                return answer.status == 200
        return False

    async def values(self, expression: str) -> list[float]:
        found = await self.get("query", query=expression)
        return [float(each["value"][1]) for each in found["result"]]


@contextlib.asynccontextmanager
async def scraping(program: str, port: int, directory: Path) -> AsyncIterator[Prometheus]:
    """Run a Prometheus that scrapes a port of this machine."""
    config = directory / "prometheus.yaml"
    config.write_text(SCRAPES.format(port=port, rules=ROOT / "deploy" / "prometheus" / "alerts.yaml"))
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        own = found.getsockname()[1]
    process = await asyncio.create_subprocess_exec(
        program,
        f"--config.file={config}",
        f"--storage.tsdb.path={directory / 'data'}",
        f"--web.listen-address=127.0.0.1:{own}",
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        async with aiohttp.ClientSession() as http:
            prometheus = Prometheus(f"http://127.0.0.1:{own}", http)
            await until(prometheus.ready, "Prometheus is ready", seconds=60)
            yield prometheus
    finally:
        process.terminate()
        await process.wait()


def expressions() -> list[tuple[str, str]]:
    """Return panel and expression of everything that is drawn, for all jobs and the shortest time."""
    found = []
    for path in DASHBOARDS:
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel.get("targets", ()):
                text = target["expr"].replace("$__rate_interval", "20s").replace("$job", ".*")
                found.append((f"{path.stem}: {panel['title']}", text))
    return found


@pytest.mark.timeout(240)
async def test_every_panel_has_data(program: Callable[[str], str], tmp_path: Path):
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    flags = ("--listen=127.0.0.1:0", "--admin-port=0", f"--metrics-port={port}", "--traffic=8")
    async with command("demo", *flags) as demo, scraping(program("prometheus"), port, tmp_path) as prometheus:
        await demo.says("curl -i")
        empty = {"all": ""}

        async def drawn() -> bool:
            empty.clear()
            for title, text in expressions():
                values = await prometheus.values(text)
                if all(map(math.isnan, values)):  # NaN is no data
                    empty[title] = text
            return not empty

        try:
            await until(drawn, "every panel has data", seconds=120)
        except AssertionError:
            assert empty == {}
        rules = await prometheus.get("rules")
        health = {rule["name"]: rule["health"] for group in rules["groups"] for rule in group["rules"]}
        assert {name for name, each in health.items() if each != "ok"} == set()
        assert len(health) == 14
        jobs = await prometheus.get("label/job/values", **{"match[]": "llm_d_epp_ready_endpoints"})
        assert jobs == ["demo"]  # what the variable of the dashboards asks for
        demo.interrupt()
        await demo.end()
