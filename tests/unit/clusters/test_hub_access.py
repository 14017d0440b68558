# SPDX-License-Identifier: Apache-2.0
"""A hub beside the API server of the pool: its kubeconfig, what is read from it, and which object counts."""

from pathlib import Path

import pytest

from epp.clusters.tagger import ClusterTagger
from epp.framework import ConfigurationError, ManualClock
from epp.framework.cluster import HubAccess, ObjectKind, ObjectsOfKind, Reading
from epp.framework.files import only_files
from epp.framework.registry import Registry
from epp.kube.objects.decode import decode_object
from epp.kube.objects.followed import ClusterObjects
from epp.kube.readers import ClusterReaders
from epp.runtime.supervisor import Supervisor
from tests.support.kube.fake_api import FakeApi
from tests.support.kube.kube_server import kubeconfig
from tests.support.kube.manifests import manifest
from tests.support.waiting import until
from tests.unit.kube.test_readers import NODE, NODES, Recorder

SERVER, TOKEN = "https://10.0.0.1:6443", "t"
SCORE = ObjectKind("cluster.open-cluster-management.io", "AddOnPlacementScore")


def build(**parameters) -> ClusterTagger:
    registry = Registry({})
    registry.register(ClusterTagger)
    return registry.build("cluster-data-source", parameters, name="clusters", clock=ManualClock())


def refused(**parameters) -> str:
    with pytest.raises(ConfigurationError) as error:
        build(**parameters)
    return str(error.value)


@pytest.fixture
def access(tmp_path) -> Path:
    return kubeconfig(tmp_path / "hub", SERVER, token=TOKEN)


def test_ocm_15_kubeconfig_that_cannot_be_used_is_refused_with_place_and_remedy(tmp_path, access):
    missing = tmp_path / "none"
    assert f"{missing}: No such file or directory; set kubeconfig to a kubeconfig file" in refused(
        kubeconfig=str(missing)
    )
    (broken := tmp_path / "broken").write_text("a: [")
    assert f"{broken}: is not YAML" in refused(kubeconfig=str(broken))
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
    status = {"scores": [{"name": "gpu", "value": value}]}
    made = decode_object(
        manifest("cluster.open-cluster-management.io/v1alpha1", "AddOnPlacementScore", "s", "east", status=status)
    )
    return ObjectsOfKind(kind, {"east/s": made}, frozenset({"east/s"}))


@pytest.mark.parametrize("hub_first", [True, False])
def test_ocm_15_object_of_the_hub_replaces_one_of_the_own_cluster(hub_first):
    here, there = scored(1, SCORE), scored(2, SCORE._replace(hub=HubAccess("k")))
    objects = ClusterObjects()
    for each in (there, here) if hub_first else (here, there):
        objects = objects.take([each])
    (held,) = objects.as_file().held
    assert held.object.scores == {"gpu": 2.0}


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
