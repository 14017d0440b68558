# SPDX-License-Identifier: Apache-2.0
"""A hub beside the pool's API server: two real API servers, each with its own rights, each without the other."""

import asyncio
import json
from base64 import b64encode
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import msgspec
import openai
import pytest
import yaml

from epp.lab.sim.server import running
from tests.support.config_files import endpoints_file
from tests.support.documents import blocks
from tests.support.kube import manifests as write
from tests.support.kube.fleet import Fleet, fleet_in
from tests.support.kube.pickers import PATIENCE_SECONDS, Picker, picker_as, pool_of
from tests.support.kube.space import Space, space_in
from tests.support.kube.users import PICKER_ROLE, User
from tests.support.waiting import until
from tests.support.world import FAST

PAGE = Path(__file__).parents[2] / "docs" / "clusters.md"
OCM = "cluster.open-cluster-management.io"
MANIFEST = Path(__file__).parents[2] / "deploy" / "manifests" / "hub-reader.yaml"
HUB_ROLE = next(each for each in yaml.safe_load_all(MANIFEST.read_text()) if each["kind"] == "ClusterRole")
HUB_KINDS = ("placement", "managedcluster", "addonplacementscores", "inferencepoolimports")


@dataclass
class Clusters:
    """A pod `a` in the pool's cluster, and the gateway `west` of another one; a hub knows of both clusters."""

    pool: Space
    hub: Space
    hub_user: User
    hub_binding: dict
    pool_user: User
    fleet: Fleet
    pool_kubeconfig: Path
    directory: Path
    stack: AsyncExitStack

    @property
    def hub_kubeconfig(self) -> Path:
        return self.directory / "hub"

    def config(self, **hub: object) -> str:
        """Return a configuration with both sources of endpoints, and the choice of clusters by the hub."""
        hub = hub or {"kubeconfig": str(self.hub_kubeconfig)}
        return f"""\
apiVersion: llm-d.ai/v1
kind: EndpointPickerConfig
plugins:
- {{type: pool-discovery}}
- {{type: file-discovery, parameters: {{path: {self.gateways}, watchFile: true}}}}
- {{type: cluster-data-source, parameters: {json.dumps({"cluster": "east", **hub})}}}
- {{type: placement-filter, parameters: {{placement: {self.hub.namespace}/llm, fallbackOnEmpty: false}}}}
- {{type: active-request-scorer}}
dataLayer:
  discovery:
    endpoints: [{{pluginRef: pool-discovery, name: pods}}, {{pluginRef: file-discovery, name: gateways}}]
"""

    @property
    def gateways(self) -> Path:
        return self.directory / "gateways.yaml"

    async def choose(self, *clusters: str) -> None:
        """Let the hub choose these clusters."""
        labels = {"labels": {f"{OCM}/placement": "llm"}}
        page = write.manifest(f"{OCM}/v1beta1", "PlacementDecision", "llm-decision-1", metadata=labels)
        made = await self.hub.apply(page)
        await self.hub.admin.status(made, {"decisions": [{"clusterName": name, "reason": ""} for name in clusters]})

    async def picker(self, config: str = "") -> Picker:
        text = f"--config-text={config or self.config()}"
        return await self.stack.enter_async_context(picker_as(self.pool_kubeconfig, *pool_of(self.pool), text))


@pytest.fixture
async def clusters(own_cluster, tmp_path):
    async with AsyncExitStack() as stack:
        pool = await stack.enter_async_context(
            space_in(await own_cluster(crds=("inferencepools", "inferenceobjectives", "inferencemodelrewrites")))
        )
        hub = await stack.enter_async_context(space_in(await own_cluster(crds=HUB_KINDS)))
        fleet = await stack.enter_async_context(fleet_in(pool))
        await fleet.start("a")
        await pool.pool(ports=fleet.ports)
        user = await hub.user("hub-reader")
        binding = await hub.grant(user, HUB_ROLE)
        user.kubeconfig(tmp_path / "hub")
        picker = await pool.user("picker", PICKER_ROLE)
        kubeconfig = picker.kubeconfig(tmp_path / "kubeconfig")
        west = msgspec.structs.replace(FAST, name="west")
        gateway = await stack.enter_async_context(running(west, fleet.address(), fleet.ports[0]))
        endpoints_file(tmp_path / "gateways.yaml", west=(gateway.address, {}, "west"))
        clusters = Clusters(pool, hub, user, binding, picker, fleet, kubeconfig, tmp_path, stack)
        await clusters.choose("east", "west")
        yield clusters


async def served_by(picker: Picker, *names: str) -> None:
    async def same() -> bool:
        try:
            return await picker.answers(4) == set(names)
        except openai.APIStatusError:  # no cluster is chosen for now
            return False

    await until(same, f"requests are answered by {names}", seconds=PATIENCE_SECONDS)
    assert await picker.answers(8) == set(names)


async def hub_of(picker: Picker) -> dict:
    (hub,) = (await picker.health())[1]["hubs"]
    return hub


async def states_of_hub(picker: Picker) -> dict[str, str]:
    return {watch["resource"]: watch["state"] for watch in (await hub_of(picker))["watches"]}


async def sources(picker: Picker) -> dict[str, dict]:
    return {each["name"]: each for each in (await picker.health())[1]["sources"]}


async def test_ocm_15_hub_chooses_among_pods_of_the_pool_and_gateways_of_a_file(clusters):
    picker = await clusters.picker()
    await picker.uses("a-rank-0", "west")
    await served_by(picker, "a-rank-0", "west")
    assert {name: each["endpoints"] for name, each in (await sources(picker)).items()} == {"pods": 1, "gateways": 1}
    for cluster, server in (("west", "west"), ("east", "a-rank-0")):
        await clusters.choose(cluster)
        await served_by(picker, server)
    hub = await hub_of(picker)
    assert hub["server"] == clusters.hub.cluster.access.url
    assert hub["kubeconfig"] == str(clusters.hub_kubeconfig)


async def test_ocm_15_documented_configuration_reads_a_hub_from_a_mounted_secret(clusters):
    (text,) = (block.text for block in blocks(PAGE) if block.text.startswith("# hub-config.yaml"))
    (secret := clusters.directory / "secret").mkdir()
    clusters.hub_user.kubeconfig(secret / "kubeconfig")
    mounted = {
        "/etc/hub": str(secret),
        "gateways.yaml": str(clusters.gateways),
        "ai/llm": f"{clusters.hub.namespace}/llm",
    }
    for documented, path in mounted.items():
        assert documented in text
        text = text.replace(documented, path)
    picker = await clusters.picker(text)
    await served_by(picker, "a-rank-0", "west")
    await clusters.choose("west")
    await served_by(picker, "west")


async def test_ocm_15_hub_dies_and_comes_back(clusters):
    picker = await clusters.picker()
    await clusters.choose("west")
    await served_by(picker, "west")
    clusters.hub.cluster.server.kill()
    line = await picker.command.says('"msg":"hub cannot be read, its last objects stay in effect"')
    assert clusters.hub.cluster.access.url in line
    assert set((await states_of_hub(picker)).values()) >= {"the API server cannot be reached"}
    assert (await picker.metrics())["llm_d_epp_hub_kinds_unread"].popitem()[1] > 0
    assert await picker.answers(4) == {"west"}  # the last decision stays
    await clusters.fleet.start("b")
    await picker.uses("a-rank-0", "b-rank-0", "west")  # the pool goes on without the hub
    await clusters.hub.cluster.server.start()
    await picker.command.says('"msg":"hub readable again"')
    await clusters.choose("east")
    await served_by(picker, "a-rank-0", "b-rank-0")


async def test_ocm_15_pool_server_dies_while_the_hub_is_there(clusters):
    picker = await clusters.picker()
    await served_by(picker, "a-rank-0", "west")
    clusters.pool.cluster.server.kill()

    async def in_trouble() -> bool:
        return bool((await sources(picker))["pods"]["trouble"])

    await until(in_trouble, "the source with the pods is in trouble", seconds=PATIENCE_SECONDS)
    assert not (await sources(picker))["gateways"]["trouble"]
    await served_by(picker, "a-rank-0", "west")  # the last pods stay
    await clusters.choose("west")
    await served_by(picker, "west")  # the hub is heard


async def test_ocm_15_picker_starts_with_the_other_sources_while_the_pool_server_is_gone(clusters):
    await clusters.choose("west")
    clusters.pool.cluster.server.kill()
    picker = await clusters.picker()
    await served_by(picker, "west")
    assert "the API server cannot be reached" in (await sources(picker))["pods"]["trouble"]
    await clusters.pool.cluster.server.start()
    await picker.uses("a-rank-0", "west")
    await clusters.choose("east")
    await served_by(picker, "a-rank-0")


async def test_ocm_15_hub_revokes_rights_and_gives_them_again(clusters):
    picker = await clusters.picker()
    await clusters.choose("west")
    await served_by(picker, "west")
    await clusters.hub.delete(clusters.hub_binding)
    await clusters.hub_user.wait_until_not(HUB_ROLE)
    await clusters.hub.cluster.restart()  # watches go on for as long as they last
    await picker.command.says('"msg":"optional objects not read"')
    assert "forbidden" in (await states_of_hub(picker)).values()
    assert await picker.answers(4) == {"west"}
    await clusters.choose("east")
    assert await picker.answers(4) == {"west"}  # not known
    await clusters.hub.grant(clusters.hub_user, HUB_ROLE)
    await served_by(picker, "a-rank-0")


async def test_ocm_15_new_credentials_of_a_mounted_secret_are_read(clusters):
    secret = clusters.directory / "secret"
    secret.mkdir()
    clusters.hub_user.kubeconfig(secret / "kubeconfig")
    picker = await clusters.picker(clusters.config(kubeconfig=str(secret), context="here"))
    await served_by(picker, "a-rank-0", "west")
    old = await clusters.hub_user.renew()
    (secret / "kubeconfig").write_text("clusters: [")
    await clusters.hub_user.revoke(old)
    await clusters.hub.cluster.restart()  # so that watches log in again
    line = await picker.command.says("Kubernetes credentials not readable, the earlier ones stay in effect")
    assert f"{secret}/kubeconfig: line 1: neither YAML nor JSON" in line
    assert "kubeconfig: line 1: neither YAML nor JSON" in (await hub_of(picker))["credentials"]
    clusters.hub_user.kubeconfig(secret / "kubeconfig")
    await clusters.choose("west")
    await served_by(picker, "west")


async def test_ocm_15_kubeconfig_in_a_secret_is_read_with_a_right_to_its_name_and_followed(clusters):
    rule = {"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["hub"], "verbs": ["get", "list", "watch"]}
    role = write.manifest(write.RBAC, "Role", "hub", rules=[rule])
    picker = await clusters.picker(clusters.config(secret={"name": "hub"}))

    async def write_secret() -> None:
        content = yaml.safe_load(clusters.hub_user.kubeconfig(clusters.directory / "flat").read_text())
        cluster = content["clusters"][0]["cluster"]  # as `kubectl config view --flatten` writes it
        authority = await asyncio.to_thread(Path(cluster.pop("certificate-authority")).read_bytes)
        cluster["certificate-authority-data"] = b64encode(authority).decode()
        text = yaml.safe_dump(content)
        data = {"kubeconfig": b64encode(text.encode()).decode()}
        await clusters.pool.apply(write.manifest("v1", "Secret", "hub", data=data))

    await write_secret()

    async def is_told() -> bool:
        problem = (await hub_of(picker)).get("credentials", "")
        named = problem.startswith(f"Secret {clusters.pool.namespace}/hub: secrets")
        return named and "is forbidden" in problem and problem.endswith("allow get, list and watch of this Secret")

    await until(is_told, "the missing right is told", seconds=PATIENCE_SECONDS)
    await clusters.pool.grant(clusters.pool_user, role)
    await served_by(picker, "a-rank-0", "west")
    old = await clusters.hub_user.renew()
    await write_secret()
    await clusters.hub_user.revoke(old)
    await clusters.hub.cluster.restart()  # so that watches log in again
    await clusters.choose("west")
    await served_by(picker, "west")


async def test_ocm_16_import_on_the_hub_brings_the_gateways_of_other_clusters(clusters):
    content = yaml.safe_load(clusters.config())
    gateway = yaml.safe_load(clusters.gateways.read_text())["endpoints"][0]
    imported = {
        "poolImport": f"{clusters.hub.namespace}/llm",
        "gateways": {"west": f"{gateway['address']}:{gateway['port']}"},
    }
    content["plugins"][1] = {"type": "pool-import-discovery", "parameters": imported}
    content["dataLayer"]["discovery"]["endpoints"][1] = {"pluginRef": "pool-import-discovery", "name": "import"}
    picker = await clusters.picker(yaml.safe_dump(content))
    await picker.uses("a-rank-0")
    assert "there is no InferencePoolImport" in (await sources(picker))["import"]["trouble"]
    pool_import = write.manifest("inference.networking.x-k8s.io/v1alpha1", "InferencePoolImport", "llm")
    made = await clusters.hub.apply(pool_import)
    exporting = [{"name": "example.com/controller", "exportingClusters": [{"name": "west"}]}]
    await clusters.hub.admin.status(made, {"controllers": exporting})
    await picker.uses("a-rank-0", "west")
    await served_by(picker, "a-rank-0", "west")
    clusters.hub.cluster.server.kill()
    await picker.command.says('"msg":"source of endpoints in trouble","source":"import","kept_endpoints":1')
    await served_by(picker, "a-rank-0", "west")  # the last gateways stay
    await clusters.hub.cluster.server.start()
    await clusters.hub.admin.status(made, {"controllers": []})
    await picker.uses("a-rank-0")
