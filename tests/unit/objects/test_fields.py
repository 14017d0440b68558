# SPDX-License-Identifier: Apache-2.0
"""Unknown fields of objects: what is said of them, and that nothing is said of known ones."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
import yaml

from epp.framework.clock import ManualClock
from epp.framework.cluster_objects import ObjectKind, ObjectsOfKind
from epp.hardware.tagger import AcceleratorTagger
from epp.kube.objects import inference, ocm, ome, placement, tensor_fusion
from epp.kube.objects.decode import ALL_KINDS, decode_object, known_fields, unknown_fields, versions_in
from epp.kube.objects.followed import FollowedObjects
from tests.support.config_files import replace
from tests.support.kube.manifests import manifest
from tests.support.plugins import built

DATA = Path("tests/data")
CLASS = ("ome.io", "AcceleratorClass")


def of_class(metadata: dict | None = None, **spec: Any) -> dict:
    return manifest("ome.io/v1beta1", "AcceleratorClass", "odd", metadata=metadata or {}, spec=spec)


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"vendr": "nvidia"}, "spec.vendr is unknown: did you mean 'vendor'?"),
        (
            {"cost": {"hourly": 3}},
            "spec.cost.hourly is unknown: known are perHour, perMillionTokens, spotPerHour, tier",
        ),
        (
            {"capability": {}},
            "spec.capability is unknown: known are capabilities, cost, discovery, family, integration, model, ",
        ),
        ({"resources": [{"name": "a"}, {"nme": "b"}]}, "spec.resources[].nme is unknown: did you mean 'name'?"),
        ({"discovery": {"nodeselector": {"a": "b"}}}, "spec.discovery.nodeselector is unknown: did you mean"),
    ],
)
def test_ome_18_unknown_field_has_its_path_and_a_hint(spec, said):
    (found,) = unknown_fields(of_class(**spec), CLASS)
    assert found.startswith(said)


def test_ome_18_service_is_checked_where_it_speaks_of_accelerators():
    selector = {"nodeselector": {}, "requiredCapabilities": {"clockSpeedMHz": 1}, "strategy": "cost"}
    spec = {
        "acceleratorSelctor": {},
        "acceleratorSelector": selector,
        "engine": {"acceleratorOveride": {}, "minReplicas": 1, "nodeSelector": {}, "acceleratorConfigurations": []},
        "decoder": {"acceleratorOverride": {"polcy": "Cheapest"}},
        "canary": {"of a later version": True},
    }
    service = manifest("ome.io/v1beta1", "InferenceService", "chat", spec=spec)
    found = unknown_fields(service, ("ome.io", "InferenceService"))
    assert [each.split(" is unknown")[0] for each in found] == [
        "spec.acceleratorSelctor",
        "spec.acceleratorSelector.nodeselector",
        "spec.acceleratorSelector.requiredCapabilities.clockSpeedMHz",
        "spec.engine.acceleratorOveride",
        "spec.decoder.acceleratorOverride.polcy",
    ]


def test_ome_18_fields_of_a_configuration_by_class_are_checked_for_any_class():
    by_class = {"h100": {"minMemory": 3, "environmentOverride": {"A": "b"}}}
    spec = {"supportedModelFormats": [{"name": "safetensors", "acceleratorConfig": by_class}], "containers": []}
    runtime = manifest("ome.io/v1beta1", "ServingRuntime", "a", spec=spec)
    (found,) = unknown_fields(runtime, ("ome.io", "ServingRuntime"))
    assert found.startswith("spec.supportedModelFormats[].acceleratorConfig.h100.minMemory is unknown: ")


def test_ome_18_fields_that_api_servers_add_are_known():
    metadata = {
        "name": "odd",
        "uid": "1",
        "resourceVersion": "7",
        "generation": 2,
        "managedFields": [{"manager": "kubectl", "fieldsV1": {"f:spec": {"f:hourly": {}}}}],
        "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}"},
        "finalizers": ["acceleratorclasses.ome.io/finalizer"],
        "ownerReferences": [{"kind": "A", "name": "b", "controller": True}],
    }
    status = {"nodes": ["a"], "whatever": 1}
    assert unknown_fields(of_class(metadata, vendor="a") | {"status": status}, CLASS) == ()
    (found,) = unknown_fields(of_class({"name": "odd", "lables": {}}), CLASS)
    assert found == "metadata.lables is unknown: did you mean 'labels'?"


@pytest.mark.parametrize("kind", [("", "Pod"), ("", "Node"), ("resource.k8s.io", "ResourceSlice")])
def test_ome_18_built_in_kinds_are_not_checked(kind):
    assert unknown_fields({"spec": {"nodname": "a"}}, kind) == ()


def test_ome_18_number_and_length_of_what_is_said_is_bounded():
    many = unknown_fields(of_class(**{f"field-{number}": 1 for number in range(100)}), CLASS)
    assert len(many) == 20
    (long,) = unknown_fields(of_class(**{"x" * 5000: 1}), CLASS)
    assert len(long) <= 210


def test_ome_18_samples_have_no_unknown_field():
    files = [*DATA.glob("accelerators/*.yaml"), *DATA.glob("clusters/*.yaml")]
    documents = [each for file in files for each in yaml.safe_load_all(file.read_text())]
    versions = list(versions_in(documents))
    assert len(versions) > 25
    assert [each.object.unknown_fields for each in versions if each.object and each.object.unknown_fields] == []


READ = {
    "ome.io/AcceleratorClass": ome.AcceleratorClass,
    "kueue.x-k8s.io/ResourceFlavor": ome.ResourceFlavor,
    "inference.networking.k8s.io/InferencePool": inference.InferencePool,
    "llm-d.ai/InferenceObjective": inference.InferenceObjective,
    "llm-d.ai/InferenceModelRewrite": inference._RawRewrite,  # noqa: SLF001  the struct that is read
    "cluster.open-cluster-management.io/Placement": placement._RawPlacement,  # noqa: SLF001  the struct that is read
    "cluster.open-cluster-management.io/ManagedCluster": ocm._RawCluster,  # noqa: SLF001  the struct that is read
    "cluster.open-cluster-management.io/ManagedClusterSet": ocm.ManagedClusterSet,
    "cluster.open-cluster-management.io/ManagedClusterSetBinding": ocm.ManagedClusterSetBinding,
    "kueue.x-k8s.io/MultiKueueCluster": ocm.MultiKueueCluster,
    "kueue.x-k8s.io/MultiKueueConfig": ocm.MultiKueueConfig,
    "kueue.x-k8s.io/AdmissionCheck": ocm.AdmissionCheck,
    "dynamic-scoring.open-cluster-management.io/DynamicScorer": ocm.DynamicScorer,
    "dynamic-scoring.open-cluster-management.io/DynamicScoringConfig": ocm.DynamicScoringConfig,
    "tensor-fusion.ai/GPUResourceQuota": tensor_fusion.GpuResourceQuota,
    "tensor-fusion.ai/SchedulingConfigTemplate": tensor_fusion.SchedulingConfigTemplate,
}


@pytest.mark.parametrize("kind", READ)
def test_ome_18_each_field_that_is_read_is_known(kind):
    """Document with every field that the struct reads."""
    document: dict[str, Any] = {}
    for path in _paths(READ[kind]):
        place = document
        for step in path[:-1]:
            place = place.setdefault(step, {})
        place.setdefault(path[-1], {})
    assert "spec" in document
    assert unknown_fields(document, tuple(kind.split("/"))) == ()


def _paths(cls: type[msgspec.Struct]) -> Iterator[tuple[str, ...]]:
    for field in msgspec.structs.fields(cls):
        if field.encode_name.startswith(" "):  # said of an object, and no part of its document
            continue
        steps = tuple(field.encode_name.split("."))
        yield steps
        for inner in _structs(field.type):
            yield from ((*steps, *rest) for rest in _paths(inner))


def _structs(annotation: Any) -> Iterator[type[msgspec.Struct]]:
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        yield annotation
    elif "Mapping" not in str(getattr(annotation, "__origin__", "")):
        for inner in get_args(annotation):
            yield from _structs(inner)


def test_ome_18_every_kind_of_the_table_is_one_that_is_read():
    assert {tuple(kind.split("/")) for kind in known_fields()} <= ALL_KINDS


def test_ome_18_document_cannot_set_what_is_said_of_it():
    forged = {" unknownFields": ["forged"], " issues": ["forged"], " invalid": "forged"}
    found = decode_object(manifest("v1", "Node", "a", metadata={}) | forged)
    assert found is not None
    assert (found.unknown_fields, found.issues, found.invalid) == ((), (), "")


def followed(*documents: dict, path: Path) -> FollowedObjects:
    replace(path, yaml.safe_dump_all(documents))
    objects = FollowedObjects([str(path)], owner="a", grace_period="5m", kinds=frozenset({CLASS}))
    change = objects.read(0.0)
    assert change is not None
    objects.apply(change)
    return objects


def test_ome_18_field_is_said_once_for_a_kind_with_the_first_of_its_objects(tmp_path):
    documents = [manifest("ome.io/v1beta1", "AcceleratorClass", f"c{n}", spec={"vendr": "a"}) for n in range(3)]
    path = tmp_path / "classes.yaml"
    (found,) = followed(*documents, path=path).inputs.ignored
    assert str(found) == (
        f"{path}: AcceleratorClass c0 and 2 more: spec.vendr is unknown: did you mean 'vendor'?; it is ignored"
    )


def test_ome_18_object_with_an_unknown_field_is_in_effect_and_plugins_tell_of_the_field(tmp_path):
    path = tmp_path / "classes.yaml"
    replace(path, yaml.safe_dump(of_class(vendor="nvidia", cost={"hourly": 3, "perHour": 2})))
    tagger = built(AcceleratorTagger, {"paths": [str(path)]}, clock=ManualClock())
    assert tagger.inventory.classes["odd"].spec.cost.per_hour == 2
    (found,) = tagger.inputs.ignored
    assert found.reason.startswith("spec.cost.hourly is unknown: ")


async def test_ome_18_object_of_the_cluster_is_told_of_too(tmp_path):
    tagger = built(AcceleratorTagger, {}, clock=ManualClock())
    found = decode_object(of_class(vendr="nvidia"))
    kind = ObjectKind(*CLASS)
    await tagger.objects_changed([ObjectsOfKind(kind, {"odd": found}, frozenset({"odd"}), ())])
    (told,) = tagger.inputs.ignored
    assert (told.file, told.object) == ("cluster", "odd")


def test_ome_17_terms_of_the_proposal_stand_for_an_affinity():
    terms = [{"matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}]}]
    found = decode_object(of_class(discovery={"nodeSelectorTerms": terms}))
    assert found is not None
    assert found.affinity.node_selector_terms[0].match_expressions[0].key == "a"
    assert found.unknown_fields == ()
