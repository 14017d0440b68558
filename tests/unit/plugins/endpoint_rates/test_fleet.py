# SPDX-License-Identifier: Apache-2.0
"""Kinds of endpoints, kept up to date with a pool that changes."""

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from epp.framework import AcceleratorTag, Endpoint, Records, Snapshot
from epp.framework.accelerators.tag import NO_TAG, POD_UID
from epp.framework.snapshot import ACCELERATOR
from epp.plugins.endpoint_rates.estimate import EMPTY, RateFleet
from epp.plugins.endpoint_rates.profiles import hardware_of

ENGINE = "vllm"
TAGS = [NO_TAG, *(AcceleratorTag(model=model) for model in ("h100", "l4"))]
ENDPOINTS = [None, *(Endpoint(name, "10.0.0.1", port) for name in ("a", "b") for port in (1, 2))]


def snapshot(*members: tuple[Endpoint | None, AcceleratorTag]) -> Snapshot:
    slots = np.array([slot for slot, (endpoint, _) in enumerate(members) if endpoint is not None], dtype=np.intp)
    return Snapshot(
        slots=slots,
        available=slots,
        endpoints=Records(tuple(endpoint for endpoint, _ in members)),
        attributes={ACCELERATOR.name: Records(tuple(tag for _, tag in members))},
    )


def fleet() -> RateFleet:
    return RateFleet("engine", ENGINE)


POOLS = st.lists(st.tuples(st.sampled_from(ENDPOINTS), st.sampled_from(TAGS)), max_size=6)


@given(st.lists(POOLS, max_size=6))
def test_each_endpoint_is_of_the_kind_of_its_hardware_whatever_was_there_before(pools):
    known, before = fleet(), []
    for members in pools:
        changed = known.follow(snapshot(*members))
        hardware = [EMPTY if one is None else hardware_of(tag, ENGINE) for one, tag in members]
        assert [known.hardware[kind] for kind in known.kinds] == hardware
        assert [kind == 0 for kind in known.kinds] == [one is None for one, _ in members]
        now = [None if one is None else (one.id, one.hostport, hardware_of(tag, ENGINE)) for one, tag in members]
        now += [None] * (len(before) - len(now))
        assert sorted(changed) == [slot for slot, one in enumerate(before) if one is not None and one != now[slot]]
        before = now


def test_kinds_that_no_endpoint_is_of_any_more_are_dropped_after_a_while():
    known, endpoint = fleet(), ENDPOINTS[1]
    for number in range(100):
        tag = AcceleratorTag(model=f"m{number}")
        known.follow(snapshot((endpoint, tag), (None, NO_TAG), (ENDPOINTS[3], TAGS[1])))
        assert len(known.hardware) < 20
        assert known.hardware[known.kinds[0]] == hardware_of(tag, ENGINE)
        assert known.hardware[known.kinds[2]] == hardware_of(TAGS[1], ENGINE)


def test_another_pod_of_the_same_name_is_told_and_another_label_is_not():
    known, endpoint = fleet(), ENDPOINTS[1]
    known.follow(snapshot((endpoint, AcceleratorTag(model="l4", attributes={POD_UID: "1"}))))
    labelled = replace(endpoint, labels={"zone": "z1"})
    assert known.follow(snapshot((labelled, AcceleratorTag(model="l4", attributes={POD_UID: "1"})))) == []
    assert known.follow(snapshot((labelled, AcceleratorTag(model="l4", attributes={POD_UID: "2"})))) == [0]
