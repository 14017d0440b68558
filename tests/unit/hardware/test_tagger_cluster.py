# SPDX-License-Identifier: Apache-2.0
"""The tagger takes objects of a cluster beside those of its files."""

import asyncio
import dataclasses
from collections.abc import Sequence

import pytest
import yaml
from structlog.testing import capture_logs

from epp.framework import Endpoint, ManualClock, SystemClock
from epp.framework.accelerators.tag import AcceleratorKind, AcceleratorTag
from epp.framework.cluster_objects import ObjectKind, ObjectsOfKind, Reading
from epp.framework.datalayer import AffectedEndpoints, every_endpoint
from epp.framework.files import UNCHANGED_SECONDS
from epp.framework.plugin_status import InputProblem
from epp.framework.snapshot import ACCELERATOR
from epp.hardware.tagger import AcceleratorTagger
from epp.kube.cluster import Cluster
from epp.kube.readers import ClusterReaders
from epp.kube.resources import ACCELERATORS, PODS
from epp.runtime.supervisor import Supervisor
from tests.support import hardware_objects as objects
from tests.support.config_files import replace
from tests.support.kube.fake_api import FakeApi
from tests.support.plugins import built
from tests.support.waiting import until

NODE, POD, CLASS = ObjectKind("", "Node"), ObjectKind("", "Pod"), ObjectKind("ome.io", "AcceleratorClass")
H100, T4 = "NVIDIA-H100-80GB-HBM3", "Tesla-T4"
ENDPOINT = Endpoint("a-rank-0", "10.0.0.1", 8000, "llm", node="n1", uid="uid-a")
OTHER = Endpoint("b-rank-0", "10.0.0.2", 8000, "llm", node="n2", uid="uid-b")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def source(clock):
    def build(**parameters) -> AcceleratorTagger:
        return built(AcceleratorTagger, parameters, clock=clock)

    return build


def node(name: str, product: str) -> dict:
    labels = {"kubernetes.io/hostname": name, "nvidia.com/gpu.product": product, "nvidia.com/gpu.count": "8"}
    return objects.node(labels, name=name)


def pod(name: str, uid: str, gpus: int) -> dict:
    return objects.pod({"nvidia.com/gpu": str(gpus)}, name=name, uid=uid, node="n1", status={"podIP": "10.0.0.1"})


def gold(product: str, **capabilities: str) -> dict:
    selector = {"nvidia.com/gpu.product": product}
    return objects.accelerator_class("gold", discovery={"nodeSelector": selector}, capabilities=capabilities)


def of(kind: ObjectKind, *documents: dict, gone: Sequence[str] = ()) -> ObjectsOfKind:
    decoded = [AcceleratorTagger.decode(document) for document in documents]
    objects = {each.id: each for each in decoded if each is not None}
    return ObjectsOfKind(kind, objects, frozenset((*objects, *gone)))


def take(tagger: AcceleratorTagger, *kinds: ObjectsOfKind) -> AffectedEndpoints:
    return asyncio.run(tagger.objects_changed(kinds))


def tag(tagger: AcceleratorTagger, endpoint: Endpoint = ENDPOINT) -> AcceleratorTag:
    return tagger.tag(endpoint).attributes[ACCELERATOR]


def test_every_kind_that_bears_on_hardware_is_read_and_no_other_one(source):
    assert {(kind.group, kind.kind) for kind in source().kinds} == {
        (resource.group, resource.kind) for resource in (PODS, *ACCELERATORS) if resource.kind != "ConfigMap"
    }
    assert source(readCluster=False).kinds == ()
    assert source().can_read(ObjectKind("", "Node", "v1"))
    assert not source().can_read(ObjectKind("apps", "Deployment", "v1"))


async def test_is_17_config_maps_of_slices_are_read_once_an_object_of_instaslice_names_one(source):
    maps, slices = "/api/v1/namespaces/llm/configmaps", "/apis/inference.redhat.com/v1alpha1/instaslices"
    name, uuid = "0b8f0a1e-1111-4222-8333-444444444444", "MIG-5d3bcf21-9b5c-5a5f-8a5e-0b9f6a1c2d3e"
    api, supervisor, tagger = FakeApi(), Supervisor(), source()
    api.install(slices)
    api.put(maps, name, metadata={"namespace": "llm"}, data={"NVIDIA_VISIBLE_DEVICES": uuid})
    api.put(maps, "accelerator-unit-costs", metadata={"namespace": "llm"}, data={"A100": "no JSON"})
    cluster = Cluster(api, clock=SystemClock(), supervisor=supervisor)
    readers = ClusterReaders(cluster, "llm", supervisor=supervisor)
    try:
        await readers.connect([Reading(tagger, tuple(tagger.kinds))], lambda *_: None)
        assert maps not in api.requests
        of_node = objects.instaslice("3g.20gb", name="n1", pod="a")
        of_node["status"]["podAllocationResults"]["uid-a"]["configMapResourceIdentifier"] = name
        del of_node["status"]["nodeResources"]  # a node whose GPUs are not known yet
        api.put(slices, "n1", **of_node)
        await until(lambda: [each.id for each in tag(tagger).devices] == [uuid], "the slice has its UUID")
        assert tagger.inventory.unit_costs == {}  # of a name that is not read
        assert tagger.inputs.problems == ()
    finally:
        await cluster.close()
        await supervisor.stop()


def test_pod_is_joined_by_its_uid_and_the_node_by_its_name(source):
    tagger = source()
    take(tagger, of(NODE, node("n1", H100), node("n2", T4)), of(POD, pod("a", "uid-a", 2)))
    assert (tag(tagger).model, tag(tagger).count, tag(tagger).node) == ("h100", 2, "n1")
    assert tag(tagger, OTHER).model == "t4"


def test_is_11_pod_of_the_same_name_and_address_before_is_another_one(source):
    tagger = source()
    take(tagger, of(NODE, node("n1", H100)), of(POD, pod("a", "uid-before", 2)))
    found = tag(tagger)
    assert "epp/pod-uid" not in found.attributes
    assert found.count != 2
    take(tagger, of(POD, pod("a", "uid-a", 4)))
    assert (tag(tagger).count, tag(tagger).attributes["epp/pod-uid"]) == (4, "uid-a")


def test_change_of_a_node_concerns_its_endpoints_and_that_of_a_class_all(source):
    tagger = source()
    take(tagger, of(NODE, node("n1", H100), node("n2", T4)), of(POD, pod("a", "uid-a", 1)))
    affected = take(tagger, of(NODE, node("n1", T4), node("n2", T4)))
    assert (affected(ENDPOINT), affected(OTHER)) == (True, True)  # the test says that both changed
    only_one = ObjectsOfKind(NODE, of(NODE, node("n1", H100), node("n2", T4)).objects, frozenset({"n1"}))
    affected = take(tagger, only_one)
    assert (affected(ENDPOINT), affected(OTHER)) == (True, False)
    assert take(tagger, of(CLASS, gold(H100))) == every_endpoint
    assert tag(tagger).primary_class == "gold"


def test_object_that_is_gone_counts_no_more(source):
    tagger = source()
    take(tagger, of(NODE, node("n1", H100)), of(CLASS, gold(H100)))
    take(tagger, of(CLASS, gone=["gold"]))
    assert tag(tagger).primary_class == ""
    take(tagger, of(NODE, gone=["n1"]))
    assert tag(tagger).kind is AcceleratorKind.UNKNOWN


def test_object_of_a_file_takes_precedence_and_nobody_complains(source, tmp_path, clock):
    path = tmp_path / "nodes.yaml"
    replace(path, yaml.safe_dump(node("n1", T4)))
    tagger = source(paths=[str(path)])
    with capture_logs() as logs:
        take(tagger, of(NODE, node("n1", H100)))
    assert tag(tagger).model == "t4"
    assert tagger.inputs.sentences == ()
    assert [line for line in logs if line["log_level"] == "warning"] == []
    replace(path, yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": []}))
    asyncio.run(tagger.check())
    clock.advance(UNCHANGED_SECONDS)  # a file without its objects is looked at twice
    assert asyncio.run(tagger.check())
    assert tag(tagger).model == "h100"


def test_ome_11_invalid_version_is_an_input_that_is_not_in_effect(source):
    tagger = source()
    assert tagger.inputs.rejected == {}
    take(tagger, of(NODE, node("n1", H100)), of(CLASS, gold(H100)))
    assert tagger.inputs.rejected == {"cluster": 0}
    reason = "spec.capabilities.computeCapability is 'nine': write a version like 9.0"
    problem = InputProblem("cluster", "AcceleratorClass gold", reason, 1)
    with capture_logs() as logs:
        take(tagger, dataclasses.replace(of(CLASS, gold(H100)), changed=frozenset(), problems=(problem,)))
    assert tagger.inputs.problems == (problem,)
    assert tagger.inputs.rejected == {"cluster": 1}
    assert [line["problem"] for line in logs] == [f"cluster: AcceleratorClass gold stays as it was: {reason}"]
    assert tag(tagger).primary_class == "gold"


async def test_files_and_cluster_may_change_at_once(source, tmp_path):
    path = tmp_path / "classes.yaml"
    replace(path, yaml.safe_dump(gold(H100)))
    tagger = source(paths=[str(path)])
    replace(path, yaml.safe_dump({**gold(H100), "metadata": {"name": "silver"}}))
    await asyncio.gather(tagger.check(), tagger.objects_changed([of(NODE, node("n1", H100))]))
    assert (tag(tagger).model, tag(tagger).primary_class) == ("h100", "silver")


def test_warning_on_an_endpoint_is_repeated_after_a_while_and_not_with_every_change(source, clock):
    tagger = source(overrides=[{"endpoint": "a-rank-0", "accelerator": {"class": "abacus"}}])
    with capture_logs() as logs:
        for product in (H100, T4, H100):
            take(tagger, of(NODE, node("n1", product)))
            tag(tagger)
        assert len([line for line in logs if line["event"] == "endpoint accelerator problem"]) == 1
        clock.advance(601)
        take(tagger, of(NODE, node("n1", T4)))
        tag(tagger)
    assert len([line for line in logs if line["event"] == "endpoint accelerator problem"]) == 2


def test_many_invalid_objects_do_not_fill_the_log(source):
    classes = [{**gold(H100, memoryGB="-1"), "metadata": {"name": f"c{number}"}} for number in range(150)]
    with capture_logs() as logs:
        take(source(), of(CLASS, *classes))
    assert len(logs) == 100


CLAIM = ObjectKind("inference.redhat.com", "AllocationClaim")


def claim(name: str, profile: str) -> dict:
    return objects.allocation_claim(profile, name=name, pod="a", node="n1", gpu="GPU-a")


def test_slice_that_the_gpu_of_a_node_cannot_have_is_said_of_the_cluster_until_it_is_corrected(source):
    tagger = source()
    with capture_logs() as logs:
        take(tagger, of(NODE, node("n1", H100)), of(POD, pod("a", "uid-a", 1)), of(CLAIM, claim("x", "3g.20gb")))
        take(tagger, of(POD, pod("a", "uid-a", 1)))
    (ignored,) = tagger.inputs.ignored
    assert (ignored.file, ignored.kind, ignored.object) == ("cluster", "AllocationClaim", "das-operator/x")
    assert ignored.reason.startswith(f"spec.profile is '3g.20gb', which '{H100}' cannot have: write one of 1g.10gb")
    assert [log["problem"] for log in logs] == [str(ignored)]  # once
    assert (tag(tagger).partition.profile, tag(tagger).memory_bytes) == ("", None)
    affected = take(tagger, of(CLAIM, claim("x", "3g.40gb")))
    assert affected(ENDPOINT)
    assert tagger.inputs.ignored == ()
    assert tag(tagger).partition.profile == "3g.40gb"
