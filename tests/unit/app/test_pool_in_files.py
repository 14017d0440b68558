# SPDX-License-Identifier: Apache-2.0
"""A picker whose pool, hardware and prices are in files, all of which may change."""

from collections.abc import AsyncIterator

import pytest
import yaml

from epp.app import Picker, PickerSettings
from epp.config import load_file
from epp.extproc.settings import ServerSettings
from epp.framework.snapshot import ACCELERATOR
from epp.pool.discovery.pod_files import PodFileDiscovery, PodFileParameters
from tests.support.config_files import replace
from tests.support.kube.manifests import manifest
from tests.support.waiting import until

CONFIG = """
apiVersion: llm-d.ai/v1
kind: EndpointPickerConfig
plugins:
- {{type: accelerator-data-source, parameters: {{prices: {prices}, costUnit: {unit}}}}}
- {{type: cheapest-scorer}}
dataLayer: {{injectDefaults: false}}
"""


def pod(name: str, address: str) -> dict:
    containers = [{"name": "vllm", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]
    status = {"phase": "Running", "podIP": address, "conditions": [{"type": "Ready", "status": "True"}]}
    spec = {"nodeName": "n1", "containers": containers}
    return manifest("v1", "Pod", name, "llm", {"uid": f"u-{name}"}, spec=spec, status=status)


def node(product: str) -> dict:
    return manifest("v1", "Node", "n1", metadata={"labels": {"nvidia.com/gpu.product": product}})


def dump(*objects: dict) -> str:
    return yaml.safe_dump({"apiVersion": "v1", "items": list(objects), "kind": "List"})


@pytest.fixture
def files(tmp_path):
    (tmp_path / "dumps").mkdir()
    (tmp_path / "dumps" / "dump.yaml").write_text(dump(node("Tesla-T4"), pod("a", "10.0.0.1")))
    (tmp_path / "prices.yaml").write_text("prices: [{accelerator: t4, perHour: 0.5}, {accelerator: l4, perHour: 0.8}]")
    (tmp_path / "config.yaml").write_text(CONFIG.format(prices=tmp_path / "prices.yaml", unit="cents"))
    return tmp_path


@pytest.fixture
async def picker(files, tmp_path_factory) -> AsyncIterator[Picker]:
    paths = (str(files / "dumps"),)
    picker = Picker(
        PickerSettings(
            server=ServerSettings(f"unix:{tmp_path_factory.mktemp('socket')}/picker.sock", secure=False),
            config=load_file(files / "config.yaml"),
            watch_config=files / "config.yaml",
            discovery=PodFileDiscovery(PodFileParameters(paths=paths)),
            object_paths=paths,
        )
    )
    await picker.start()
    yield picker
    await picker.stop(drain_seconds=0)


def prices(picker: Picker) -> dict[str, float | None]:
    """Return the price of each endpoint by its name."""
    snapshot = picker.store.snapshot()
    endpoints, tags = snapshot.endpoints.values, snapshot.records(ACCELERATOR).values
    return {endpoints[slot].name: tags[slot].cost_per_hour() for slot in snapshot.slots.tolist()}


async def test_tf_18_ome_7_pods_nodes_and_prices_take_effect_as_they_are_written(picker, files):
    assert prices(picker) == {"a-rank-0": 0.5}
    replace(files / "dumps" / "dump.yaml", dump(node("NVIDIA-L4"), pod("a", "10.0.0.1"), pod("b", "10.0.0.2")))
    await until(lambda: prices(picker) == {"a-rank-0": 0.8, "b-rank-0": 0.8}, "the new dump is in effect")
    replace(files / "prices.yaml", "prices: [{accelerator: l4, perHour: 0.9}]")
    await until(lambda: set(prices(picker).values()) == {0.9}, "the new price is in effect")


async def test_tagger_of_the_next_configuration_reads_the_objects_of_the_pool_too(picker, files):
    replace(files / "config.yaml", CONFIG.format(prices=files / "prices.yaml", unit="dollars"))
    await until(lambda: picker.config.generation == 2, "the configuration is in effect")
    await until(lambda: prices(picker) == {"a-rank-0": 0.5}, "its tagger knows the node")
