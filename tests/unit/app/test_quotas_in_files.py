# SPDX-License-Identifier: Apache-2.0
"""A picker with listed endpoints, whose quotas are in the files of `--objects`."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
import yaml
from aiohttp import ClientSession

from epp.app import Picker, PickerSettings
from epp.config import load_text
from epp.extproc.settings import ServerSettings
from epp.framework import Headers
from epp.pool.discovery import StaticDiscovery
from epp.pool.discovery.targets import Target
from epp.telemetry.settings import AdminSettings
from tests.support.kube.manifests import manifest

CONFIG = """
apiVersion: llm-d.ai/v1
kind: EndpointPickerConfig
plugins:
- {{type: tenant-quotas, parameters: {{gpuResourceQuotas: true, requestsPerEndpoint: {requests}}}}}
- {{type: queue-scorer}}
dataLayer: {{injectDefaults: false}}
"""
BODY = {"model": "m", "prompt": "hello"}
OF_TEAM = {"x-llm-d-inference-fairness-id": "team-a"}


@pytest.fixture
async def picker(tmp_path: Path) -> AsyncIterator[Picker]:
    quota = manifest("tensor-fusion.ai/v1", "GPUResourceQuota", "quota", "team-a", spec={"total": {"maxWorkers": 1}})
    (tmp_path / "objects.yaml").write_text(yaml.safe_dump(quota))
    picker = Picker(
        PickerSettings(
            server=ServerSettings(f"unix:{tmp_path}/picker.sock", secure=False),
            config=load_text(CONFIG.format(requests=64)),
            discovery=StaticDiscovery([Target("a", "127.0.0.1", 1)]),
            any_pool_object_paths=(str(tmp_path / "objects.yaml"),),
            admin=AdminSettings(port=0),
        )
    )
    await picker.start()
    yield picker
    await picker.stop(drain_seconds=0)


@pytest.mark.parametrize("requests", [64, 128], ids=["unchanged plugin", "new plugin"])
async def test_configuration_on_trial_has_the_quotas_of_the_object_files(picker, requests):
    headers = Headers([(":path", "/v1/completions"), *OF_TEAM.items()])
    picker.director.route(headers, msgspec.json.encode(BODY), None)  # uses the whole quota
    asked = {"body": BODY, "headers": OF_TEAM, "config": CONFIG.format(requests=requests)}
    url = f"http://{picker.addresses['admin'].split()[0]}/api/simulate-schedule"
    async with asyncio.timeout(60), ClientSession() as http, http.post(url, json=asked) as response:
        record = await response.json()
    assert record["error"]["reason"] == "rejected-quota", record
