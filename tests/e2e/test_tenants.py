# SPDX-License-Identifier: Apache-2.0
"""Clients with API keys, behind a real Envoy: who waits, who is refused, and that no key is ever shown."""

import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
import yaml

from epp.lab.sim.server import RunningSim
from tests.e2e.test_flow_control import FLOW, SECONDS, Front, front_of
from tests.e2e.test_policies import DROPPED, OBJECTIVE, objective, written
from tests.support.config_files import ConfigMap, picker_config, replace
from tests.support.gateways import Gateway
from tests.support.tenants import sha256
from tests.support.waiting import read_until
from tests.support.world import question

LOW, HIGH, OTHER = "sk-of-low-5d1a", "sk-of-high-77e0", "sk-of-nobody-9c42"
KEYS = (LOW, HIGH, OTHER)


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


class Setting:
    """A server, and the files of a gateway in front of it."""

    def __init__(self, directory: Path, sim: RunningSim) -> None:
        self.sim = sim
        self._config = directory / "config.yaml"
        self._objects = written(directory / "objects.yaml", objective("urgent", 1000), objective("batch", -5))
        (directory / "mounted").mkdir()
        self.file = directory / "mounted" / "keys.yaml"
        self.secret = ConfigMap(directory / "mounted", keys=f"{LOW}: low-team\n{sha256(HIGH)}: high-team\n")

    def configure(self, **parameters: object) -> None:
        tenants = [{"name": "low-team", "qos": "low"}, {"name": "high-team", "qos": "high", "highestPriority": 50}]
        given = {"tenants": tenants, "apiKeyFile": str(self.file), **parameters}
        content = {
            "plugins": [{"type": "queue-scorer"}, {"type": "tenants", "parameters": given}],
            "schedulingProfiles": [{"name": "default", "plugins": [{"pluginRef": "queue-scorer"}]}],
        }
        replace(self._config, picker_config(yaml.safe_dump(content)))

    @contextlib.asynccontextmanager
    async def front(self, *more: str) -> AsyncIterator[Front]:
        """Run a gateway; at the end, check that it has shown no key, whatever it was asked."""
        flags = (f"--config-file={self._config}", f"--objects={self._objects}", f"--endpoints=a={self.sim.address}")
        async with front_of(*flags, *more) as front:
            yield front
            shown = str(front.gateway.process)
            for page in ("metrics", "healthz", "debug/endpoints"):
                url = f"http://127.0.0.1:{front.gateway.metrics_port}/{page}"
                async with aiohttp.ClientSession() as http, http.get(url) as response:
                    shown += await response.text()
            assert "llm_d_epp_tenant_requests_total" in shown
            assert not [key for key in KEYS if key in shown]

    async def served(self) -> list[dict[str, str]]:
        """Return the headers of the requests that the server has seen, in order."""
        url = f"http://{self.sim.address}/sim/requests"
        async with aiohttp.ClientSession() as http, http.get(url) as response:
            return [dict(record["headers"]) for record in await response.json()]

    async def occupy(self, front: Front, waiting: int) -> None:
        """Let requests wait in the server, and wait until the picker knows."""
        url = f"http://{self.sim.address}/sim/occupy"
        async with aiohttp.ClientSession() as http, http.post(url, json={"waiting": waiting}) as response:
            assert response.status == 200
        await read_until(
            lambda: front.gateway.total("average_queue_size"),
            lambda size: size >= waiting,
            "the picker knows of the queue",
            SECONDS,
        )


@pytest.fixture
def setting(sim: RunningSim, tmp_path: Path) -> Setting:
    setting = Setting(tmp_path, sim)
    setting.configure()
    return setting


async def requests_of(gateway: Gateway) -> dict[tuple[str, str], float]:
    """Return the number of requests by fairness id and priority."""
    found: dict[tuple[str, str], float] = {}
    for labels, value in (await gateway.metrics()).get("llm_d_epp_request_total", {}).items():
        named = dict(label.split("=", 1) for label in labels)
        key = named["fairness_id"], named["priority"]
        found[key] = found.get(key, 0) + value
    return found


@pytest.mark.slow
async def test_low_is_shed_and_high_goes_by_their_keys_alone(setting):
    async with setting.front() as front:
        await setting.occupy(front, 5)
        status, headers, _ = await front.ask("low", **bearer(LOW))
        assert (status, headers[DROPPED]) == (429, "rejected-saturated")
        assert (await front.ask("high", x_api_key=HIGH))[0] == 200
        assert (await front.ask("stranger", **bearer(OTHER)))[0] == 200  # allowed by default, at priority 0
        (high, stranger) = await setting.served()
        assert high["x-api-key"] == HIGH  # the server may want it
        assert stranger["authorization"] == f"Bearer {OTHER}"
        line = await front.line("low")
        assert (line["fairness_id"], line["priority"]) == ("low-team", -1)


async def test_client_is_of_its_own_tenant_whatever_it_calls_itself_and_whatever_it_asks_for(setting):
    async with setting.front() as front:
        for name, key, more in (
            ("1", LOW, {FLOW: "high-team"}),
            ("2", LOW, {FLOW: "high-team", "x-gateway-inference-fairness-id": "high-team"}),
            ("3", HIGH, {FLOW: "anything", OBJECTIVE: "urgent"}),  # up to highestPriority
            ("4", HIGH, {OBJECTIVE: "batch"}),
            ("5", OTHER, {FLOW: "high-team"}),
            ("6", OTHER, {FLOW: "own"}),
        ):
            assert (await front.ask(name, **bearer(key), **more))[0] == 200
        assert await requests_of(front.gateway) == {
            ("low-team", "-1"): 2,
            ("high-team", "50"): 1,
            ("high-team", "-5"): 1,
            ("default-flow", "0"): 1,
            ("own", "0"): 1,
        }


async def test_unknown_key_is_refused_in_the_words_of_the_api_where_the_operator_wants_that(setting):
    setting.configure(unknown="Refuse", removeApiKey=True)
    async with setting.front("-v=5") as front, aiohttp.ClientSession() as http:
        status, _, body = await front.ask("unknown", **bearer(OTHER))
        assert status == 401
        assert (body["error"]["type"], body["error"]["code"]) == ("authentication_error", "invalid_api_key")
        assert body["error"]["message"] == "the API key of this request is unknown: send a valid one"
        status, _, body = await front.ask("none", **{FLOW: "high-team"})
        assert (status, body["error"]["code"]) == (401, "invalid_api_key")
        assert "send the header 'authorization' with 'Bearer' and the key" in body["error"]["message"]
        response = await front.gateway.post("/v1/messages", question(), **{"x-api-key": OTHER})
        assert (response.status, (await response.json())["error"]["type"]) == (401, "authentication_error")
        async with http.get(f"{front.gateway.url}/v1/models") as response:
            assert response.status == 401
        assert await setting.served() == []
        assert (await front.ask("bearer", **bearer(HIGH)))[0] == 200
        assert (await front.ask("plain", api_key=HIGH))[0] == 200
        assert len(await setting.served()) == 2
        assert not [headers for headers in await setting.served() if {"authorization", "api-key"} & headers.keys()]
        samples = await front.gateway.metrics()
        assert list(samples["llm_d_epp_tenant_unknown_api_keys_total"].values()) == [2]


async def test_keys_of_a_mounted_secret_are_swapped_under_use_and_a_broken_version_changes_nothing(setting):
    setting.configure(unknown="Refuse")
    async with setting.front() as front:
        names = iter(range(10**6))

        async def priority(key: str) -> int | None:
            """Send a request; return its priority, None for one that is refused."""
            name = f"r{next(names)}"
            status, _, _ = await front.ask(name, **bearer(key))
            assert status in {200, 401}
            return (await front.line(name))["priority"] if status == 200 else None

        async def becomes(key: str, expected: int | None) -> None:
            what = f"the priority is {expected}"
            await read_until(lambda: priority(key), lambda found: found == expected, what, SECONDS)

        assert (await priority(LOW), await priority(HIGH), await priority(OTHER)) == (-1, 10, None)
        setting.secret.update(keys=json.dumps({LOW: "high-team", OTHER: "low-team"}))
        await becomes(LOW, 10)
        assert (await priority(HIGH), await priority(OTHER)) == (None, -1)

        setting.secret.update(keys=f"{HIGH}: [\n")
        (problem,) = await front.gateway.not_in_effect(1)
        assert (problem["plugin"], problem["file"], problem["kept"]) == ("tenants", str(setting.file), 2)
        assert problem["reason"].startswith("line 2: neither YAML nor JSON: ")
        assert (await priority(LOW), await priority(HIGH)) == (10, None)
        labels = frozenset({"plugin_name=tenants", f"file={setting.file}"})
        assert (await front.gateway.metrics())["llm_d_epp_input_problems"][labels] == 1

        setting.secret.update(keys=f"{HIGH}: high-team\n")
        await becomes(HIGH, 10)
        assert await priority(LOW) is None
        assert await front.gateway.not_in_effect(0) == []
