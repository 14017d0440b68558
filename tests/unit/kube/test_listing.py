# SPDX-License-Identifier: Apache-2.0
"""Objects that are listed once."""

import pytest

from epp.kube.access import ApiError
from epp.kube.collection import list_objects
from epp.kube.resources import PODS, Resource

CLAIMS = Resource("resource.k8s.io", ("v1", "v1beta1"), "resourceclaims", "ResourceClaim")


def named(name, namespace="llm"):
    return {"metadata": {"name": name, "namespace": namespace}}


def read(document):
    if "broken" in document["metadata"]["name"]:
        raise ValueError("spec is broken: mend it")
    return document["apiVersion"], document["kind"], document["metadata"]["name"]


async def test_all_pages_are_read_with_kind_and_version(scripted, script):
    script.allow("pods")
    script.objects["/api/v1/pods"] = [named(f"p{number}") for number in range(1100)] + [named("other", "elsewhere")]
    found = await list_objects(scripted, PODS, read, namespace="llm")
    assert [item.object for item in found] == [("v1", "Pod", f"p{number}") for number in range(1100)]
    assert len(script.asked) == 3  # of 500 each


async def test_invalid_object_is_returned_with_its_problem(scripted, script):
    script.allow("pods")
    script.objects["/api/v1/pods"] = [named("broken"), named("good")]
    broken, good = await list_objects(scripted, PODS, read)
    assert (broken.id, broken.object, broken.problem) == ("llm/broken", None, "spec is broken: mend it")
    assert good.object == ("v1", "Pod", "good")


async def test_kind_that_is_absent_and_kind_that_is_forbidden_are_errors(scripted, script):
    with pytest.raises(ApiError, match="resourceclaims is forbidden"):
        await list_objects(scripted, CLAIMS, read)
    assert len(script.asked) == 1  # the next version would be forbidden as well
    script.allow("resourceclaims")
    with pytest.raises(ApiError, match="not found"):
        await list_objects(scripted, CLAIMS, read)
