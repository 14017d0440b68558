# SPDX-License-Identifier: Apache-2.0
"""Objects of a cluster stand beside those of files, and count their rejected versions."""

from epp.framework.cluster_objects import ObjectKind, ObjectsOfKind
from epp.framework.plugin_status import InputProblem
from epp.kube.objects.base import ObjectKey
from epp.kube.objects.decode import decode_object
from epp.kube.objects.followed import ClusterObjects
from tests.support.kube.manifests import manifest

CLASS, NODE = ObjectKind("ome.io", "AcceleratorClass"), ObjectKind("", "Node")


GOOD = decode_object(manifest("ome.io/v1beta1", "AcceleratorClass", "gold"))


def classes(*problems: InputProblem) -> ObjectsOfKind:
    return ObjectsOfKind(CLASS, {"gold": GOOD}, frozenset({"gold"}), problems)


def test_rejected_versions_are_inputs_that_are_not_in_effect():
    problem = InputProblem("cluster", "AcceleratorClass gold", "spec is 7: write a mapping", 1)
    state = ClusterObjects().take([classes()]).take([classes(problem)])
    assert (state.inputs.problems, state.inputs.rejected) == ((problem,), {"cluster": 1})
    assert state.find(CLASS, "gold") is GOOD
    assert state.take([classes(problem)]).inputs == state.inputs  # it is counted once
    assert state.take([classes()]).inputs.problems == ()


def test_objects_are_those_of_a_file_without_those_that_files_have():
    nodes = ObjectsOfKind(NODE, {"n1": decode_object(manifest("v1", "Node", "n1"))})
    state = ClusterObjects().take([nodes, classes()])
    key = ObjectKey("ome.io", "AcceleratorClass", "", "gold")
    assert {held.key for held in state.as_file().held} == {key, ObjectKey("", "Node", "", "n1")}
    assert {held.key.name for held in state.as_file(without={key}).held} == {"n1"}


def test_kind_that_is_read_in_two_ways_has_its_objects_once():
    again = ObjectsOfKind(CLASS._replace(version="v1beta1"), {"gold": GOOD}, frozenset({"gold"}))
    state = ClusterObjects().take([classes(), again])
    assert state.as_file().held == (GOOD,)
