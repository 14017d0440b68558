# SPDX-License-Identifier: Apache-2.0
"""Objects are read where the API server has them and lets them be read: versions, namespaces, names of resources."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping

from epp.framework import SystemClock
from epp.framework.cluster_objects import ObjectKind
from epp.kube.resources import Resource, resource_of
from epp.kube.watched import Watched, WatchState
from tests.support.kube.fake_api import FakeApi
from tests.support.waiting import until

CLAIMS = Resource("inference.redhat.com", ("v1alpha1",), "allocationclaims", "AllocationClaim", everywhere=True)
ALL = "/apis/inference.redhat.com/v1alpha1/allocationclaims"
OWN = "/apis/inference.redhat.com/v1alpha1/namespaces/llm/allocationclaims"
SLICES = Resource("resource.k8s.io", ("v1", "v1beta1"), "resourceslices", "ResourceSlice", namespaced=False)


def keep(document: Mapping[str, object]) -> object:
    return document.get("data", "")


@contextlib.asynccontextmanager
async def watching(api: FakeApi, resource: Resource, **options) -> AsyncIterator[Watched]:
    watched = Watched(api, resource, keep, clock=SystemClock(), **options)
    task = asyncio.create_task(watched.run())
    try:
        yield watched
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_own_namespace_is_read_where_all_of_them_are_forbidden(fake_api):
    fake_api.put(OWN, "a", data="own", metadata={"namespace": "llm"})
    fake_api.forbid(ALL)
    async with watching(fake_api, CLAIMS, fallback="llm") as watched:
        await watched.first_list()
        assert watched.objects == {"llm/a": "own"}
        assert watched.state is WatchState.CURRENT
        assert watched.collection.title == "allocationclaims.inference.redhat.com in llm"
        assert watched.collection.is_narrowed


async def test_all_namespaces_are_tried_again_whenever_the_watch_of_the_own_one_ends(fake_api):
    fake_api.put(OWN, "a", data="own", metadata={"namespace": "llm"})
    fake_api.forbid(ALL)
    async with watching(fake_api, CLAIMS, fallback="llm") as watched:
        await until(lambda: fake_api.watches(OWN), "the own namespace is watched")
        fake_api.end_watches()
        await until(lambda: fake_api.requests.count(ALL) == 2, "all namespaces are tried again")
        await until(lambda: fake_api.watches(OWN), "the own namespace is watched again")
        assert fake_api.requests.count(OWN) == 1  # continued without a list
        assert watched.objects == {"llm/a": "own"}
        fake_api.put(ALL, "b", data="other", metadata={"namespace": "operator"})
        fake_api.forbidden.clear()
        fake_api.end_watches()
        await until(lambda: watched.objects == {"operator/b": "other"}, "all namespaces are read")
        assert not watched.collection.is_narrowed


async def test_objects_of_all_namespaces_stay_in_effect_when_they_are_forbidden_later(fake_api):
    fake_api.put(ALL, "a", data="all", metadata={"namespace": "operator"})
    fake_api.install(OWN)
    async with watching(fake_api, CLAIMS, fallback="llm") as watched:
        await until(lambda: fake_api.watches(ALL), "all namespaces are watched")
        fake_api.forbid(ALL)
        await until(lambda: watched.state is WatchState.FORBIDDEN, "they are forbidden")
        assert watched.objects == {"operator/a": "all"}
        assert OWN not in fake_api.requests


async def test_kind_that_is_forbidden_everywhere_is_tried_in_both_places_until_it_is_not(fake_api):
    fake_api.put(OWN, "a", data="own", metadata={"namespace": "llm"})
    fake_api.forbid(ALL, OWN)
    async with watching(fake_api, CLAIMS, fallback="llm") as watched:
        await watched.settled()
        assert watched.state is WatchState.FORBIDDEN
        assert watched.collection.title == "allocationclaims.inference.redhat.com"
        fake_api.forbidden.remove(OWN)
        await until(lambda: watched.objects == {"llm/a": "own"}, "the own namespace is read")


async def test_objects_stay_in_effect_while_the_server_changes_to_another_version(fake_api):
    older, newer = (f"/apis/resource.k8s.io/{version}/resourceslices" for version in ("v1beta1", "v1"))
    fake_api.put(older, "a", data="x")
    async with watching(fake_api, SLICES) as watched:
        await until(lambda: fake_api.watches(older), "the older version is watched")
        seen: list[Mapping[str, object]] = []
        watched.subscribe(lambda _: seen.append(dict(watched.objects)))
        del fake_api.collections[older]
        fake_api.put(newer, "a", data="y")
        fake_api.end_watches()
        await until(lambda: fake_api.watches(newer), "the newer version is watched")
        assert seen == [{"a": "y"}]


async def test_resource_of_an_unknown_kind_is_asked_of_the_server(fake_api):
    resource = resource_of(ObjectKind("acme.io", "Rack", "v2"))
    names = ("racks/status", "racks")
    resources = [{"name": name, "kind": "Rack", "namespaced": False} for name in names]
    fake_api.documents["/apis/acme.io/v2"] = {"resources": resources}
    fake_api.put("/apis/acme.io/v2/racks", "r1", data="x")
    async with watching(fake_api, resource, namespace="llm") as watched:
        await watched.first_list()
        assert (watched.collection.title, watched.collection.namespace) == ("racks.acme.io", "")
        assert watched.objects == {"r1": "x"}


async def test_version_of_an_unknown_kind_is_the_one_that_the_server_prefers(fake_api):
    resource = resource_of(ObjectKind("acme.io", "Room"))
    fake_api.documents["/apis/acme.io"] = {"preferredVersion": {"groupVersion": "acme.io/v3", "version": "v3"}}
    fake_api.documents["/apis/acme.io/v3"] = {"resources": [{"name": "rooms", "kind": "Room", "namespaced": True}]}
    fake_api.put("/apis/acme.io/v3/namespaces/llm/rooms", "r1", data="x", metadata={"namespace": "llm"})
    async with watching(fake_api, resource, namespace="llm") as watched:
        await watched.first_list()
        assert watched.objects == {"llm/r1": "x"}


async def test_unknown_kind_that_is_installed_later_is_read_then(fake_api):
    resource = resource_of(ObjectKind("", "Thing"))
    fake_api.documents["/api/v1"] = {"resources": [{"name": "nodes", "kind": "Node", "namespaced": False}]}
    async with watching(fake_api, resource) as watched:
        await watched.settled()
        assert (watched.state, watched.reason) == (WatchState.ABSENT, "/api/v1 has no Thing")
        fake_api.documents["/api/v1"] = {"resources": [{"name": "things", "kind": "Thing", "namespaced": False}]}
        fake_api.put("/api/v1/things", "t", data="x")
        await until(lambda: watched.objects == {"t": "x"}, "it is read")


async def test_unreadable_answer_on_resources_is_tried_again(fake_api):
    resource = resource_of(ObjectKind("acme.io", "Rack", "v2"))
    fake_api.documents["/apis/acme.io/v2"] = "what?"
    async with watching(fake_api, resource) as watched:
        await until(lambda: watched.state is WatchState.STALE, "the answer is of no use")
        assert watched.reason.startswith("the response to /apis/acme.io/v2 is unreadable")
        fake_api.documents["/apis/acme.io/v2"] = {"resources": [{"name": "racks", "kind": "Rack"}]}
        fake_api.install("/apis/acme.io/v2/racks")
        await until(lambda: watched.state is WatchState.CURRENT, "it is read")


def test_known_kinds_are_read_in_the_version_that_is_asked_for():
    assert resource_of(ObjectKind("resource.k8s.io", "ResourceSlice")).versions == ("v1", "v1beta2", "v1beta1")
    assert resource_of(ObjectKind("resource.k8s.io", "ResourceSlice", "v1beta1")).versions == ("v1beta1",)
    assert resource_of(ObjectKind("", "Pod", "v1")).plural == "pods"
