# SPDX-License-Identifier: Apache-2.0
"""Kinds of endpoints, kept up to date with a pool that changes."""

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from epp.framework import AcceleratorTag, Endpoint, Records, Snapshot
from epp.framework.accelerators.tag import NO_TAG, POD_UID
from epp.framework.snapshot import ACCELERATOR
from epp.plugins.endpoint_rates.estimate import EMPTY, Fleet
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


def fleet(*members: tuple[Endpoint | None, AcceleratorTag]) -> Fleet:
    return Fleet.of(snapshot(*members), "engine", ENGINE)


POOLS = st.lists(st.tuples(st.sampled_from(ENDPOINTS), st.sampled_from(TAGS)), max_size=6)


@given(st.lists(POOLS, max_size=6))
def test_each_endpoint_is_of_the_kind_of_its_hardware_whatever_was_there_before(pools):
    former, before = fleet(), []
    for members in pools:
        found = fleet(*members)
        hardware = [EMPTY if one is None else hardware_of(tag, ENGINE) for one, tag in members]
        assert [found.hardware[kind] for kind in found.kinds] == hardware
        assert [kind == 0 for kind in found.kinds] == [one is None for one, _ in members]
        assert len(found.hardware) == len({*hardware, EMPTY})
        now = [None if one is None else (one.id, one.hostport, hardware_of(tag, ENGINE)) for one, tag in members]
        now += [None] * (len(before) - len(now))
        changed = [slot for slot, one in enumerate(before) if one is not None and one != now[slot]]
        assert found.changed_since(former) == changed
        former, before = found, now


def test_another_pod_of_the_same_name_is_told_and_another_label_is_not():
    endpoint = ENDPOINTS[1]
    labelled = replace(endpoint, labels={"zone": "z1"})
    before = fleet((endpoint, AcceleratorTag(model="l4", attributes={POD_UID: "1"})))
    assert fleet((labelled, AcceleratorTag(model="l4", attributes={POD_UID: "1"}))).changed_since(before) == []
    assert fleet((labelled, AcceleratorTag(model="l4", attributes={POD_UID: "2"}))).changed_since(before) == [0]
