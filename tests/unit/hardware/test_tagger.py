# SPDX-License-Identifier: Apache-2.0
"""Endpoints are tagged from files, labels and declarations, and anew when files change."""

import asyncio
from functools import partial

import pytest
import yaml
from structlog.testing import capture_logs

from epp.framework import ConfigurationError, Endpoint, ManualClock
from epp.framework.accelerators.tag import AcceleratorDeclaration, AcceleratorKind, AcceleratorTag
from epp.framework.datalayer import AffectedEndpoints
from epp.framework.snapshot import ACCELERATOR, NODE_LABELS
from epp.hardware.tagger import AcceleratorTagger
from epp.pool.collectors.tagging import Tagging
from epp.routing.datastore import Datastore
from tests.support import hardware_objects as objects
from tests.support import plugins
from tests.support.config_files import replace
from tests.support.waiting import until

T4 = {"nvidia.com/gpu.product": "Tesla-T4", "nvidia.com/gpu.count": "1"}


def source(**parameters) -> AcceleratorTagger:
    return plugins.built(AcceleratorTagger, parameters)


def tag(built: AcceleratorTagger, **fields) -> AcceleratorTag:
    return built.tag(Endpoint("a", "10.0.0.1", 8000, **fields)).attributes[ACCELERATOR]


def accelerator_class(price: str, *, name: str = "cheap-t4") -> dict:
    return objects.accelerator_class(name, discovery={"nodeSelector": T4}, cost={"perHour": price})


def test_defaults_are_for_endpoints_of_which_nothing_is_known():
    built = source(defaults={"class": "l4", "costPerHour": 0.7})
    assert tag(built, labels=T4).model == "t4"
    assumed = tag(built)
    assert (assumed.model, assumed.cost_per_hour()) == ("l4", 0.7)
    assert assumed.provenance["per_hour"] == "defaults"
    assert tag(source()).kind is AcceleratorKind.UNKNOWN


def test_ome_11_object_that_is_malformed_costs_that_one_alone(tmp_path):
    bad = {**objects.accelerator_class("bad"), "spec": 7}
    replace(tmp_path / "classes.yaml", yaml.safe_dump_all([bad, accelerator_class("0.53")]))
    replace(tmp_path / "broken.yaml", "{")
    built = source(paths=[str(tmp_path)])
    assert tag(built, labels=T4).primary_class == "cheap-t4"
    assert built.inventory.skipped == 2
    assert any("classes.yaml" in problem and "bad" in problem for problem in built.inputs.sentences)
    assert any("broken.yaml" in problem for problem in built.inputs.sentences)


def test_ome_15_devices_of_each_class_are_metrics(tmp_path):
    node = objects.node(T4, name="n1", allocatable={"nvidia.com/gpu": "4"})
    others = [objects.accelerator_class(f"c{number}") for number in range(300)]
    replace(tmp_path / "objects.yaml", yaml.safe_dump_all([accelerator_class("0.53"), node, *others]))
    samples = source(paths=[str(tmp_path)]).samples
    of_classes = [each for each in samples if each.metric.name.startswith("accelerator_class_")]
    assert len(of_classes) == 2 * 256  # a cluster may have any number of classes
    of_t4 = {sample.metric.name: sample.value for sample in samples if sample.labels == ("cheap-t4",)}
    assert of_t4 == {"accelerator_class_devices": 4, "accelerator_class_available_devices": 4}


def test_impossible_value_is_logged_once_and_is_among_the_inputs(tmp_path):
    replace(tmp_path / "classes.yaml", yaml.safe_dump(accelerator_class("-3")))
    with capture_logs() as logs:
        built = source(paths=[str(tmp_path)])
        asyncio.run(built.check())
    (log,) = logs
    sentence = (
        f"{tmp_path}/classes.yaml: AcceleratorClass cheap-t4: spec.cost.perHour is -3: write US dollars, 0 or more"
    )
    assert log["problem"] == f"{sentence}; it is ignored"
    assert [str(value) for value in built.inputs.ignored] == [log["problem"]]
    assert tag(built, labels=T4).primary_class == "cheap-t4"
    assert tag(built, labels=T4).cost_per_hour() is None


def test_policies_in_the_files_are_ignored_even_if_they_are_broken(tmp_path):
    policy = {"apiVersion": "llm-d.ai/v1alpha2", "kind": "InferenceObjective", "spec": {"priority": "high"}}
    replace(tmp_path / "objects.yaml", yaml.safe_dump_all([policy, accelerator_class("0.53")]))
    built = source(paths=[str(tmp_path)])
    assert set(built.inventory.classes) == {"cheap-t4"}
    assert built.inputs.problems == ()


@pytest.mark.parametrize(
    ("parameters", "problem"),
    [
        ({"defaults": {"class": "t4", "costPerHour": -2}}, "costPerHour is -2; it must be between 0 and 10000"),
        ({"defaults": {"class": "t4", "profile": "3g.20gb"}}, "defaults.profile is '3g.20gb', but 't4' has no MIG"),
        (
            {"overrides": [{"node": "*", "accelerator": {"class": "a30", "profile": "3g.40gb"}}]},
            r"overrides\[0\].accelerator.profile is '3g.40gb', which 'a30' cannot have: write one of 1g.6gb",
        ),
        ({"overrides": [{"node": "*", "accelerator": {"count": -2}}]}, "count is -2; it must be between 1 and 65536"),
        ({"instanceTypes": {"p9": {"product": "h100", "count": 0}}}, "count is 0; it must be between 1 and 65536"),
    ],
)
def test_what_the_operator_declares_and_cannot_be_is_an_error(parameters, problem):
    with pytest.raises(ConfigurationError, match=problem):
        source(**parameters)


def test_path_where_there_is_nothing_is_refused_when_it_is_built(tmp_path):
    with pytest.raises(ConfigurationError, match=r"^paths: there is neither file nor directory"):
        source(paths=[str(tmp_path / "nowhere")])


async def test_changed_file_tags_all_endpoints_anew(tmp_path):
    path = tmp_path / "classes.yaml"
    replace(path, yaml.safe_dump(accelerator_class("0.53")))
    built = source(paths=[str(tmp_path)])
    store = Datastore(ManualClock())
    store.replace([Endpoint("a", "10.0.0.1", 8000, labels=T4), Endpoint("b", "10.0.0.2", 8000)])
    tagging = Tagging(store, [built])

    def tags() -> tuple[AcceleratorTag, ...]:
        return store.snapshot().records(ACCELERATOR).values[:2]

    tasks = [asyncio.create_task(tagging.follow())]
    tasks.append(asyncio.create_task(built.follow(partial(tagging.retag, built))))
    try:
        replace(path, yaml.safe_dump(accelerator_class("0.35", name="cheaper-t4")))
        await until(lambda: tags()[0].primary_class == "cheaper-t4", "the new class has effect")
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    first, second = tags()
    assert first.cost_per_hour() == 0.35
    assert second.kind is AcceleratorKind.UNKNOWN


async def test_without_paths_there_is_nothing_to_follow():
    async with asyncio.timeout(20):
        await source().follow(never)


def never(_concerns: AffectedEndpoints) -> None:
    raise AssertionError


def test_what_is_wrong_with_an_endpoint_is_said_once(tmp_path):
    path = tmp_path / "classes.yaml"
    replace(path, yaml.safe_dump(accelerator_class("0.53")))
    built = source(paths=[str(path)])
    with capture_logs() as logs:
        for _ in range(3):
            tag(built, accelerator=AcceleratorDeclaration(accelerator_class="abacus"))
    (entry,) = logs
    assert entry["endpoint"] == "default/a"
    assert entry["problem"].startswith("endpoint list: 'abacus' is neither an AcceleratorClass nor a product")


def test_pool_that_is_wrong_all_over_does_not_fill_the_log():
    built = source()
    with capture_logs() as logs:
        for number in range(150):
            tag(built, accelerator=AcceleratorDeclaration(accelerator_class=f"abacus-{number}"))
    assert len(logs) == 100


def test_tf_4_labels_of_the_node_are_an_attribute(tmp_path):
    file = tmp_path / "objects.yaml"
    replace(file, yaml.safe_dump_all([objects.node({"zone": "z1"}, name="n1"), objects.pod(node="n1")]))
    tagger = source(paths=[str(file)])

    def labels(**endpoint):
        return dict(tagger.tag(Endpoint(address="10.0.0.1", port=8000, **endpoint)).attributes[NODE_LABELS])

    on_n1 = {"zone": "z1", "metadata.name": "n1"}
    assert labels(name="vllm-a", namespace="llm", labels={"app": "vllm"}) == on_n1
    assert labels(name="other", node="n1") == on_n1
    assert labels(name="other", node="n2", labels={"zone": "z2"}) == {"zone": "z2", "metadata.name": "n2"}
    assert labels(name="other", node="n1", cluster="elsewhere") == {"metadata.name": "n1"}
    assert labels(name="other") == {}
