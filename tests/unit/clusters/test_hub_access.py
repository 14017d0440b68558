# SPDX-License-Identifier: Apache-2.0
"""A hub beside the API server of the pool: its kubeconfig, what is read from it, and which object counts."""

from base64 import b64encode
from pathlib import Path

import pytest

from epp.framework import ConfigurationError, SystemClock
from epp.framework.cluster_objects import HubAccess, ObjectKind, ObjectsOfKind, Reading
from epp.framework.files import only_files
from epp.kube import readers as readers_module
from epp.kube.cluster import Cluster
from epp.kube.configuration import read_secret
from epp.kube.objects.decode import decode_object
from epp.kube.objects.followed import ClusterObjects
from epp.kube.readers import ClusterReaders, Hubs
from epp.pool.clusters.tagger import ClusterTagger
from epp.runtime.supervisor import Supervisor
from tests.support.hub_objects import scores
from tests.support.kube.fake_api import FakeApi
from tests.support.kube.kubeconfig import kubeconfig, kubeconfig_text
from tests.support.kube.scripted_api import Script
from tests.support.plugins import built
from tests.support.waiting import until
from tests.unit.kube.test_readers import NODE, NODES, Recorder

SERVER, TOKEN = "https://10.0.0.1:6443", "t"
SCORE = ObjectKind("cluster.open-cluster-management.io", "AddOnPlacementScore")


def build(**parameters) -> ClusterTagger:
    return built(ClusterTagger, parameters)


def refused(**parameters) -> str:
    with pytest.raises(ConfigurationError) as error:
        build(**parameters)
    return str(error.value)


@pytest.fixture
def access(tmp_path) -> Path:
    return kubeconfig(tmp_path / "hub", SERVER, token=TOKEN)


def test_ocm_15_kubeconfig_that_cannot_be_used_is_refused_with_place_and_remedy(tmp_path, access):
    missing = tmp_path / "none"
    said = f"{missing}: No such file or directory; set kubeconfig to a kubeconfig file"
    assert said in refused(kubeconfig=str(missing))
    (broken := tmp_path / "broken").write_text("a: [")
    assert f"{broken}: line 1: neither YAML nor JSON" in refused(kubeconfig=str(broken))
    (empty := tmp_path / "secret").mkdir()
    said = f"{empty}: it has none of the files kubeconfig, value: name a kubeconfig in kubeconfig"
    assert said in refused(kubeconfig=str(empty))
    said = f"{access}: it has context 'other', which is not in contexts: add it, or choose another context"
    assert said in refused(kubeconfig=str(access), context="other")
    assert "context has no effect without kubeconfig" in refused(context="other")


def test_ocm_15_configuration_on_trial_names_no_other_kubeconfig_than_that_in_effect(access):
    with only_files([]):
        assert "only files of the configuration in effect may be named here" in refused(kubeconfig=str(access))
    with only_files([str(access)]):
        assert build(kubeconfig=str(access))


@pytest.mark.parametrize("key", ["kubeconfig", "value"])
def test_ocm_15_directory_of_a_mounted_secret_is_access_to_a_hub(tmp_path, key):
    kubeconfig(tmp_path / key, SERVER, token=TOKEN)
    assert build(kubeconfig=str(tmp_path))


def test_ocm_15_objects_of_clusters_come_from_the_hub_and_usage_from_the_own_cluster(access):
    hub = HubAccess(str(access))
    both = build(kubeconfig=str(access), usageScores=True).kinds
    assert {kind for kind in both if kind[:2] == SCORE[:2]} == {SCORE, SCORE._replace(hub=hub)}
    assert [kind.hub for kind in both if kind.kind == "Node"] == [None]
    assert {kind.hub for kind in build(kubeconfig=str(access), readCluster=False).kinds} == {hub}


def scored(value: int, kind: ObjectKind) -> ObjectsOfKind:
    made = decode_object(scores("east", name="s", gpu=value))
    return ObjectsOfKind(kind, {"east/s": made}, frozenset({"east/s"}))


@pytest.mark.parametrize("hub_first", [True, False])
def test_ocm_15_object_of_the_hub_replaces_one_of_the_own_cluster(hub_first):
    here, there = scored(1, SCORE), scored(2, SCORE._replace(hub=HubAccess("k")))
    objects = ClusterObjects()
    for each in (there, here) if hub_first else (here, there):
        objects = objects.take([each])
    (held,) = objects.as_file().held
    assert held.scores == {"gpu": 2.0}


async def test_ocm_15_hub_is_read_without_a_cluster_of_the_pool_and_left_when_no_plugin_reads_it(access, monkeypatch):
    api = FakeApi()
    api.put(NODES, "n1", data="one")
    api.namespace = "east"
    monkeypatch.setattr("epp.kube.readers.KubeApi", lambda *_, **__: api)
    supervisor = Supervisor()
    readers = ClusterReaders(None, "", supervisor=supervisor)
    plugin, of_hub = Recorder(), NODE._replace(hub=HubAccess(str(access)))
    await readers.connect([Reading(plugin, (NODE, of_hub))], lambda *_: None)
    assert plugin.known == {of_hub: {"n1": "one"}}
    readers.keep([])
    await readers.hubs.close_unused()
    assert not readers.hubs.clusters
    await until(lambda: not api.watches(NODES), "the hub is left")
    await supervisor.stop()


SECRETS, SECRET = "/api/v1/namespaces/llm/secrets", {"name": "hub"}
OF_SECRET = HubAccess("", "", "llm/hub")
ONE, TWO = "token-one", "token-two"


def encoded(text: str) -> str:
    return b64encode(text.encode()).decode()


@pytest.fixture
async def pool():
    """The API server of a pool, and the plugin that reads nodes of the hub whose kubeconfig is in a Secret."""
    api, supervisor = FakeApi(), Supervisor()
    api.install(SECRETS)
    cluster = Cluster(api, clock=SystemClock(), supervisor=supervisor)
    yield api, ClusterReaders(cluster, "llm", supervisor=supervisor)
    await cluster.close()
    await supervisor.stop()


def tokens(script: Script) -> set[str]:
    return {headers.get("Authorization", "") for _, path, headers in script.asked if path == NODES}


async def test_ocm_15_kubeconfig_in_a_secret_is_read_and_followed(pool, script, capsys, monkeypatch):
    monkeypatch.setattr(readers_module, "SETTLING_SECONDS", 1.0)  # all there is comes from this process
    api, readers = pool
    script.objects[NODES] = [{"metadata": {"name": "n1"}, "data": "one"}]
    script.allow("nodes")
    plugin, (*_, kind) = Recorder(), build(secret=SECRET, readCluster=False).kinds
    of_hub = NODE._replace(hub=kind.hub)
    api.put(SECRETS, "hub", metadata={"namespace": "llm"}, data={"value": encoded("a: [")})
    await readers.connect([Reading(plugin, (of_hub,))], lambda *_: None)
    (hub,) = readers.hubs.clusters.values()
    assert "Secret llm/hub, key value: line 1: neither YAML nor JSON" in hub.api.trouble
    text = encoded(kubeconfig_text(script.url, token=ONE))
    api.put(SECRETS, "hub", metadata={"namespace": "llm"}, data={"value": text})
    await until(lambda: plugin.known == {of_hub: {"n1": "one"}}, "the hub is read once the Secret is right")
    assert (tokens(script), hub.api.trouble, hub.api.server) == ({f"Bearer {ONE}"}, "", script.url)
    text = encoded(kubeconfig_text(script.url, token=TWO))
    api.put(SECRETS, "hub", metadata={"namespace": "llm"}, data={"kubeconfig": text})
    await until(lambda: f"Bearer {TWO}" in tokens(script), "the new token is in use")
    readers.keep([])
    await readers.hubs.close_unused()
    await until(lambda: not api.watches(SECRETS), "the Secret is not followed any more")
    assert "token-" not in str(capsys.readouterr())


async def test_ocm_15_secret_that_is_missing_or_forbidden_is_said_with_the_remedy(pool, monkeypatch):
    monkeypatch.setattr(readers_module, "SETTLING_SECONDS", 1.0)  # all there is comes from this process
    api, readers = pool
    api.forbid(SECRETS)
    plugin = Recorder()
    await readers.connect([Reading(plugin, (NODE._replace(hub=OF_SECRET),))], lambda *_: None)
    (hub,) = readers.hubs.clusters.values()
    said = f"Secret llm/hub: no list of {SECRETS}; create it, and allow get, list and watch of this Secret"
    assert hub.api.trouble == said
    assert [watch.reason for watch in hub.watches] == [said]
    with pytest.raises(
        ConfigurationError, match="the picker has no cluster to read the Secret from: set --pool-name, or use"
    ):
        Hubs(SystemClock(), Supervisor()).cluster(OF_SECRET)


@pytest.mark.parametrize(
    ("data", "key", "said"),
    [
        ({}, "", "Secret llm/hub: it has no key kubeconfig or value: add the kubeconfig, or correct `key`"),
        ({"kubeconfig": ""}, "other", "Secret llm/hub: it has no key other: add"),
        ({"kubeconfig": "%"}, "", "Secret llm/hub: kubeconfig is not base64 text"),
        ({"kubeconfig": encoded("[]")}, "", "Secret llm/hub, key kubeconfig: is not a kubeconfig"),
        ({"x": encoded(kubeconfig_text(SERVER, tokenFile="/run/token"))}, "x", "key x: tokenFile is not allowed here"),
    ],
)
def test_ocm_15_secret_without_a_usable_kubeconfig_is_refused(data, key, said):
    with pytest.raises(ConfigurationError) as error:
        read_secret(data, "Secret llm/hub", key)
    assert said in str(error.value)


def test_ocm_15_commands_in_a_secret_are_not_run():
    text = kubeconfig_text(SERVER, exec={"apiVersion": "client.authentication.k8s.io/v1beta1", "command": "true"})
    with pytest.raises(ConfigurationError, match="exec is not allowed here"):
        read_secret({"value": encoded(text)}, "Secret llm/hub")


def test_ocm_15_access_to_a_hub_has_one_place(access):
    said = "kubeconfig and secret both name the access to a hub: keep one of them"
    assert said in refused(kubeconfig=str(access), secret=SECRET)
    hub = build(secret={"name": "hub", "namespace": "ocm", "key": "k"}, context="c", readCluster=False).kinds[0].hub
    assert hub == HubAccess("", "c", "ocm/hub", "k")
