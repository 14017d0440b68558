# SPDX-License-Identifier: Apache-2.0
"""Objects of a cluster keep their last good version, by the rules for those of files."""

from collections.abc import Mapping

from epp.framework.cluster_objects import ObjectKind, ObjectsOfKind
from epp.framework.plugin_status import InputProblem
from epp.hardware.classes import object_faults
from epp.kube.objects.base import Object
from epp.kube.objects.decode import ObjectKey, decode_object
from epp.kube.objects.followed import ClusterObjects
from tests.support.kube.manifests import manifest

CLASS, NODE = ObjectKind("ome.io", "AcceleratorClass"), ObjectKind("", "Node")


def accelerator_class(name: str, **capabilities: str) -> Object:
    found = decode_object(manifest("ome.io/v1beta1", "AcceleratorClass", name, spec={"capabilities": capabilities}))
    assert found is not None
    return found


def changed(objects: Mapping[str, Object], *names: str, problems: tuple[InputProblem, ...] = ()) -> ObjectsOfKind:
    return ObjectsOfKind(CLASS, objects, frozenset(names), problems)


def taken(before: ClusterObjects, *kinds: ObjectsOfKind) -> ClusterObjects:
    return before.take(kinds, object_faults)


GOOD = accelerator_class("gold", computeCapability="9.0")
BETTER = accelerator_class("gold", computeCapability="10.0")
FAULTY = accelerator_class("gold", computeCapability="nine")
FAULT = "spec.capabilities.computeCapability is 'nine': write a version like 9.0"


def test_ome_11_version_with_an_invalid_value_replaces_no_valid_one():
    first = taken(ClusterObjects(), changed({"gold": GOOD}, "gold"))
    second = taken(first, changed({"gold": FAULTY}, "gold"))
    assert second.find(CLASS, "gold") is GOOD
    assert second.inputs.problems == (InputProblem("cluster", "AcceleratorClass gold", FAULT, 1),)
    third = taken(second, changed({"gold": FAULTY, "silver": accelerator_class("silver")}, "silver"))
    assert third.find(CLASS, "gold") is GOOD
    assert third.inputs == second.inputs  # nothing new is said of an object that did not change
    assert third.inputs.rejected == {"cluster": 1}
    assert taken(third, changed({"gold": BETTER}, "gold")).inputs.problems == ()


def test_version_with_an_invalid_value_counts_where_there_is_no_valid_one():
    first = taken(ClusterObjects(), changed({"gold": FAULTY}, "gold"))
    assert first.find(CLASS, "gold") is FAULTY
    assert first.inputs.problems == ()
    assert taken(first, changed({"gold": GOOD}, "gold")).find(CLASS, "gold") is GOOD


def test_versions_that_cannot_be_decoded_are_inputs_that_are_not_in_effect():
    problem = InputProblem("cluster", "AcceleratorClass gold", "spec is 7: write a mapping", 1)
    first = taken(ClusterObjects(), changed({"gold": GOOD}, "gold"))
    second = taken(first, changed({"gold": GOOD}, problems=(problem,)))
    assert (second.inputs.problems, second.inputs.rejected) == ((problem,), {"cluster": 1})
    assert second.find(CLASS, "gold") is GOOD
    assert taken(second, changed({"gold": GOOD})).inputs.problems == ()


def test_objects_are_those_of_a_file_without_those_that_files_have():
    nodes = ObjectsOfKind(NODE, {"n1": decode_object(manifest("v1", "Node", "n1"))})
    state = taken(ClusterObjects(), nodes, changed({"gold": GOOD}, "gold"))
    key = ObjectKey("ome.io", "AcceleratorClass", "", "gold")
    assert {held.key for held in state.as_file().held} == {key, ObjectKey("", "Node", "", "n1")}
    assert {held.key.name for held in state.as_file(without={key}).held} == {"n1"}


def test_kind_that_is_read_in_two_ways_has_its_objects_once():
    again = ObjectsOfKind(CLASS._replace(version="v1beta1"), {"gold": GOOD}, frozenset({"gold"}))
    state = taken(ClusterObjects(), changed({"gold": GOOD}, "gold"), again)
    assert [held.object for held in state.as_file().held] == [GOOD]
