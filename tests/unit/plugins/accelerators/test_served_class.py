# SPDX-License-Identifier: Apache-2.0
"""The accelerator class that served a session or a tenant before."""

import msgspec
import pytest

from epp.framework import Headers, ManualClock, Request
from epp.framework.accelerators.selection import SERVED_CLASS, class_of, of_served_class
from epp.framework.accelerators.tag import NO_TAG, AcceleratorTag, Partition, Sharing
from epp.framework.sharing import MOST_PAYLOAD_BYTES
from epp.framework.snapshot import ACCELERATOR
from epp.framework.testing import candidates
from epp.plugins.availability import ServedClassProducer
from tests.support.plugins import built

H100 = AcceleratorTag(model="h100", classes=("nvidia-H100", "any"))
T4 = AcceleratorTag(model="t4")
POOL = candidates(records={ACCELERATOR: [H100, H100, T4, NO_TAG]})


def build(clock=None, **parameters):
    return built(ServedClassProducer, parameters, clock=clock or ManualClock())


def asking(session: str = "s", **fields) -> Request:
    return Request("r", headers=Headers([("x-session-id", session)] if session else []), **fields)


def served(plugin, request: Request) -> str | None:
    plugin.produce(request, POOL)
    return request.get(SERVED_CLASS)


def test_ome_19_class_of_the_endpoint_that_was_chosen_last_is_published(sent_to):
    plugin = build()
    assert served(plugin, asking()) is None
    plugin.pre_request(asking(), sent_to(POOL, 1))
    assert served(plugin, asking()) == "nvidia-h100"
    assert served(plugin, asking("another")) is None
    plugin.pre_request(asking(), sent_to(POOL, 2))
    assert served(plugin, asking()) == "t4"
    plugin.pre_request(asking(), sent_to(POOL, 3))  # unknown hardware has no class
    assert served(plugin, asking()) == "t4"


def test_ome_19_slice_is_another_class_than_the_whole_device():
    half = msgspec.structs.replace(T4, model="a100", partition=Partition(kind=Sharing.MIG, profile="3g.20gb"))
    assert [class_of(tag) for tag in (half, T4, NO_TAG)] == ["a100 3g.20gb", "t4", ""]


def test_ome_19_tenant_may_have_a_class(sent_to):
    plugin = build(by="tenant")
    plugin.pre_request(asking("s1", fairness_id="gold"), sent_to(POOL, 0))
    assert served(plugin, asking("s2", fairness_id="gold")) == "nvidia-h100"
    plugin.pre_request(asking("s1"), sent_to(POOL, 0))
    assert served(plugin, asking("s1")) is None  # requests without a fairness id are of no tenant


def test_ome_19_memory_is_bounded_in_time_and_number(sent_to):
    clock = ManualClock()
    plugin = build(clock, sessionIdConfig={"maxSessions": 2, "evictionTtlSeconds": 60})
    for session in ("a", "b", "c"):
        plugin.pre_request(asking(session), sent_to(POOL, 0))
    assert [served(plugin, asking(session)) for session in "abc"] == [None, "nvidia-h100", "nvidia-h100"]
    clock.advance(61)
    assert served(plugin, asking("c")) is None


def test_ome_19_pickers_know_each_others_classes(sent_to):
    one, other = build(), build()
    one.pre_request(asking("before"), sent_to(POOL, 0))
    one.join(7)
    for number in range(3000):
        one.pre_request(asking(f"s{number}"), sent_to(POOL, 0))
    counts = []
    while (payload := one.changes(POOL.snapshot)) is not None:
        assert len(payload) <= MOST_PAYLOAD_BYTES
        counts.append(other.apply("peer", payload, POOL.snapshot))
    assert counts == [1056, 1056, 888]
    assert served(other, asking("s2999")) == "nvidia-h100"
    assert served(other, asking("before")) is None


@pytest.mark.parametrize("payload", [b"", b"\xff", msgspec.msgpack.encode([(b"short", "h100")])])
def test_ome_19_payload_of_another_picker_is_checked(payload):
    with pytest.raises(ValueError, match=r".+"):
        build().apply("peer", payload, POOL.snapshot)


def test_ome_19_class_counts_only_where_it_tells_candidates_apart():
    request = asking()
    assert of_served_class(request, POOL) is None
    request.put(SERVED_CLASS, "t4")
    assert of_served_class(request, POOL).tolist() == [False, False, True, False]
    request.put(SERVED_CLASS, "mi300x")
    assert of_served_class(request, POOL) is None
    request.put(SERVED_CLASS, "nvidia-h100")
    assert of_served_class(request, candidates(records={ACCELERATOR: [H100, H100]})) is None
