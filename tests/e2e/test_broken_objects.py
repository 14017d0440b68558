# SPDX-License-Identifier: Apache-2.0
"""Files of accelerator objects break while requests need what they say; no request is refused for that."""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from operator import not_
from pathlib import Path

import openai
import pytest
import yaml

from tests.support.config_files import endpoints_file, picker_config, replace
from tests.support.gateways import Gateway, gateway_with
from tests.support.kube.manifests import manifest
from tests.support.load import load_on
from tests.support.waiting import read_until
from tests.support.world import client_of, question

PROFILE = picker_config("""
plugins:
- type: file-discovery
  parameters: {{path: {directory}/endpoints.yaml}}
- type: accelerator-data-source
  parameters: {{paths: [{directory}/objects/classes.yaml], missingFileGracePeriod: {grace}}}
- type: accelerator-filter
  parameters: {{minMemory: 10}}
- type: random-picker
dataLayer: {{discovery: {{pluginRef: file-discovery}}}}
""")


@dataclass(frozen=True)
class Cluster:
    """Servers `a` and `b`, each with an accelerator whose memory only a class in a file tells."""

    config: Path
    classes: Path

    def write(self, **memory: str) -> None:
        """Give the accelerators of these servers that memory."""
        replace(self.classes, yaml.safe_dump_all([_class(name, size) for name, size in memory.items()]))


def _class(server: str, memory: str) -> dict:
    spec = {
        "vendor": "acme",
        "discovery": {"nodeSelector": {"acme.com/gpu": server}},
        "capabilities": {"memoryGB": memory},
    }
    return manifest("ome.io/v1beta1", "AcceleratorClass", f"acme-{server}", spec=spec)


@pytest.fixture
def cluster(simulated: Callable, tmp_path: Path) -> Callable:
    async def written(grace: str) -> Cluster:
        sims = await simulated("a", "b")
        pool = {name: (sim.address, {"acme.com/gpu": name}) for name, sim in sims.items()}
        endpoints_file(tmp_path / "endpoints.yaml", **pool)
        (tmp_path / "objects").mkdir()
        cluster = Cluster(tmp_path / "config.yaml", tmp_path / "objects" / "classes.yaml")
        cluster.config.write_text(PROFILE.format(directory=tmp_path, grace=grace))
        cluster.write(a="80Gi", b="80Gi")
        return cluster

    return written


async def input_metrics(gateway: Gateway, file: Path) -> list[float]:
    """Problems of the file, objects of which an older version is kept, and versions that were rejected."""
    labels = frozenset({"plugin_name=accelerator-data-source", f"file={file}"})
    shown = await gateway.metrics()
    return [
        shown[f"llm_d_epp_input_{name}"][labels] for name in ("problems", "objects_kept", "versions_rejected_total")
    ]


@pytest.mark.slow
async def test_no_request_is_refused_while_objects_are_broken(cluster: Callable):
    files: Cluster = await cluster("5m")
    async with gateway_with(files.config) as gateway, load_on(gateway.url, long=0) as load:
        assert await load.answered_after(0) == {"a", "b"}
        assert await input_metrics(gateway, files.classes) == [0, 0, 0]

        replace(files.classes, "{{ not yaml")
        (broken,) = await gateway.not_in_effect(1)
        assert broken["reason"].startswith("line 1: neither YAML nor JSON: ")
        assert (broken["file"], broken["object"], broken["kept"]) == (str(files.classes), "", 2)
        assert await load.answered_after(time.monotonic()) == {"a", "b"}
        assert await input_metrics(gateway, files.classes) == [1, 2, 1]

        files.write(a="80GiB", b="40Gi")
        await gateway.process.says("AcceleratorClass acme-a stays as it was")
        (broken,) = await gateway.not_in_effect(1)
        assert broken == {
            "plugin": "accelerator-data-source",
            "file": str(files.classes),
            "object": "AcceleratorClass acme-a",
            "reason": "spec.capabilities.memoryGB is '80GiB': write 80Gi, without the B",
            "kept": 1,
        }
        assert await load.answered_after(time.monotonic()) == {"a", "b"}
        assert await input_metrics(gateway, files.classes) == [1, 1, 2]

        files.classes.unlink()
        gone = json.loads(await gateway.process.says("stays as it was, with 2 objects: it is gone"))
        assert gone["problem"].startswith(f"{files.classes} stays as it was")
        assert await load.answered_after(time.monotonic()) == {"a", "b"}
        assert [each["kept"] for each in await gateway.not_in_effect(1)] == [2]

        files.write(a="80Gi", b="5Gi")  # a good version, by which b is too small
        assert await gateway.not_in_effect(0) == []
        await gateway.process.says('"problems":0')
        await read_until(lambda: load.answered_after(time.monotonic()), {"a"}.__eq__, "only a serves requests")
        assert await input_metrics(gateway, files.classes) == [0, 0, 2]


async def is_served(client: openai.AsyncOpenAI) -> bool:
    try:
        await client.chat.completions.create(**question())
    except openai.RateLimitError:
        return False
    return True


async def test_objects_of_a_missing_file_are_removed_after_the_grace_period(cluster: Callable):
    files: Cluster = await cluster("1s")
    async with gateway_with(files.config) as gateway, client_of(gateway.url) as client:
        files.classes.unlink()
        await gateway.process.says("stays as it was, with 2 objects: it is gone")
        await gateway.process.says("objects of a missing file removed")
        (missing,) = await gateway.not_in_effect(1)
        assert (missing["reason"], missing["kept"]) == ("it is gone: restore it, or remove it from `paths`", 0)
        await read_until(lambda: is_served(client), not_, "requests are refused")  # once the endpoints are tagged again

        files.write(a="80Gi")
        await gateway.not_in_effect(0)
        await read_until(lambda: is_served(client), bool, "requests are served")
