# SPDX-License-Identifier: Apache-2.0
"""Those who want the same objects share a watch, which ends with the last of them."""

import pytest

from epp.kube.objects.decode import decode_object
from epp.kube.resources import PODS
from tests.support.waiting import until

PATH = "/api/v1/namespaces/llm/pods"
GOLD = {"labelSelector": "tier=gold"}


@pytest.fixture(autouse=True)
def pods(fake_api):
    """No watch of pods is left when the cluster is closed."""
    fake_api.install(PATH)
    yield
    assert not fake_api.watches(PATH)


async def test_same_objects_have_one_watch_until_the_last_user_releases_it(fake_api, cluster):
    first = cluster.watch(PODS, decode_object, namespace="llm", selector=GOLD)
    second = cluster.watch(PODS, decode_object, namespace="llm", selector=dict(GOLD))
    assert first is second
    await first.first_list()
    await until(lambda: fake_api.watches(PATH) == 1, "the pods are watched")
    cluster.release(first)
    assert cluster.watches == (second,)
    cluster.release(second)
    assert cluster.watches == ()
    await until(lambda: not fake_api.watches(PATH), "the watch has ended")


async def test_other_labels_other_decoders_and_other_namespaces_have_watches_of_their_own(cluster):
    watches = {
        cluster.watch(PODS, decode_object, namespace="llm"),
        cluster.watch(PODS, decode_object, namespace="llm", selector=GOLD),
        cluster.watch(PODS, decode_object, namespace="other"),
        cluster.watch(PODS, lambda _: None, namespace="llm"),
    }
    assert set(cluster.watches) == watches
    assert len(watches) == 4


async def test_watch_may_be_released_after_all_were_closed(cluster):
    watched = cluster.watch(PODS, decode_object, namespace="llm")
    await cluster.close()
    cluster.release(watched)
    assert cluster.watches == ()


async def test_part_shows_its_own_watches_and_releases_them_alone(fake_api, cluster):
    one, other = cluster.part(), cluster.part()
    shared = one.watch(PODS, decode_object, namespace="llm")
    assert other.watch(PODS, decode_object, namespace="llm") is shared
    gold = other.watch(PODS, decode_object, namespace="llm", selector=GOLD)
    assert (one.watches, set(other.watches)) == ((shared,), {shared, gold})
    await other.close()
    assert cluster.watches == (shared,)
    await shared.first_list()
    await until(lambda: fake_api.watches(PATH) == 1, "the pods are watched for the other part")
    one.release(shared)
    await one.close()
    assert cluster.watches == ()
