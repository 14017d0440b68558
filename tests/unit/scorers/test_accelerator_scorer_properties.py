# SPDX-License-Identifier: Apache-2.0
"""Scores are finite and in [0, 1] for any tags and metrics."""

from math import inf, nan

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from epp.framework import ManualClock, Request, RequestBody
from epp.framework.accelerators.tag import (
    SLOTS_FREE,
    SLOTS_TOTAL,
    TFLOPS_USED,
    VRAM_USED,
    AcceleratorKind,
    AcceleratorTag,
    Cost,
    Device,
    Partition,
    Performance,
    Routability,
    Sharing,
)
from epp.framework.registry import Registry
from epp.framework.testing import candidates

PREFERENCES = [{"class": "b", "score": 30}, {"class": "a", "conditions": [{"promptTokens": ">5"}]}]
SCORERS = [
    ("best-fit-scorer", {}),
    ("best-fit-scorer", {"minMemory": 16, "minComputeTFLOPS": 100, "preferredPrecisions": ["fp8", "int4"]}),
    ("most-capable-scorer", {}),
    ("most-capable-scorer", {"basis": "device", "preferredPrecisions": ["int8", "fp32"]}),
    ("cheapest-scorer", {}),
    ("cheapest-scorer", {"basis": "device", "spotPreference": "always", "costBasis": "compute"}),
    ("first-available-scorer", {}),
    ("first-available-scorer", {"classes": ["b", "a"], "limits": {"a": {"queueDepthThreshold": 1}}}),
    ("preference-order-scorer", {"preferenceOrder": PREFERENCES}),
    ("compact-first-scorer", {}),
    ("low-load-first-scorer", {"vramWeight": 0}),
    ("node-compact-gpu-low-load-scorer", {}),
    ("node-compact-gpu-low-load-scorer", {"combine": "weighted"}),
    ("slice-headroom-scorer", {"mode": "pack"}),
    ("slice-fit-scorer", {}),
    ("slice-fit-scorer", {"minMemory": "5Gi"}),
    ("slice-fit-scorer", {"minComputeSlices": 2}),
    ("gpu-neighbour-scorer", {}),
    ("device-health-scorer", {}),
    ("strategy-scorer", {"strategy": "cost"}),
    ("strategy-scorer", {"strategy": "performance"}),
]
BY_CAPACITY = {"normalizeBy": "relativeCapacity"}
LOAD_SCORERS = [
    (f"{load}-scorer", BY_CAPACITY)
    for load in ("queue", "running-requests-size", "active-request", "load-aware", "token-load")
]
BY_ACCELERATOR, BY_LOAD = (
    [Registry().build(kind, parameters, name="s", clock=ManualClock()) for kind, parameters in scorers]
    for scorers in (SCORERS, LOAD_SCORERS)
)

names = st.sampled_from(["", "a", "b"])
fractions = st.floats(0, 1)
shares = st.one_of(st.sampled_from([nan, inf, -inf, -1.0, 5e-324, 1e-9, 80.0, 1e12, 1e308]), fractions)
metric = st.one_of(st.just(nan), st.floats(0, 1e6))


def tags(figures):
    return st.builds(
        AcceleratorTag,
        kind=st.sampled_from(AcceleratorKind),
        model=names,
        classes=st.lists(names, max_size=2).map(tuple),
        devices=st.lists(
            st.builds(
                Device,
                id=names,
                parent_id=names,
                health=st.sampled_from(["", "Healthy", "Unhealthy", "Unknown"]),
                taints=st.sampled_from([(), ("NoSchedule",), ("NoExecute",)]),
            ),
            max_size=3,
        ).map(tuple),
        count=st.integers(0, 16),
        memory_bytes=st.one_of(st.none(), st.integers(0, 2**45)),
        performance=st.builds(Performance, fp32=figures, fp16=figures, fp8=figures, int8=figures, int4=figures),
        bandwidth_gbps=st.one_of(st.none(), figures),
        partition=st.builds(
            Partition,
            kind=st.sampled_from(Sharing),
            compute_slices=st.integers(0, 8),
            memory_slots=st.integers(0, 8),
            compute_fraction=fractions,
            memory_fraction=fractions,
            parent_id=names,
        ),
        cost=st.builds(
            Cost,
            per_hour=st.one_of(st.none(), figures),
            spot_per_hour=st.one_of(st.none(), figures),
            per_million_tokens=st.one_of(st.none(), figures),
            tier=st.sampled_from(["", "low", "HIGH", "other"]),
            spot=st.sampled_from([None, True, False]),
        ),
        state=st.sampled_from(Routability),
        node=names,
        attributes=st.dictionaries(st.sampled_from([VRAM_USED, TFLOPS_USED, SLOTS_FREE, SLOTS_TOTAL]), shares),
    )


@st.composite
def pools(draw, figures):
    drawn = draw(st.lists(tags(figures), min_size=1, max_size=6))

    def column(values):
        return draw(st.lists(values, min_size=len(drawn), max_size=len(drawn)))

    pool = candidates(
        accelerators=drawn,
        reported={"GPUUtilization": column(metric)},
        waiting=column(metric),
        running=column(metric),
        kv_usage=column(metric),
        in_flight=column(st.floats(0, 1e6)),
        in_flight_tokens=column(st.floats(0, 1e9)),
    )
    some = np.array(column(st.booleans()))
    return pool.keep(some) if some.any() else pool


def check(scorers, pool):
    request = Request("r", RequestBody(prompt_tokens=10))
    for scorer in scorers:
        found = scorer.score(request, pool)
        assert found.shape == (len(pool),), scorer.plugin_type
        assert np.isfinite(found).all(), scorer.plugin_type
        assert ((found >= 0) & (found <= 1)).all(), scorer.plugin_type


@given(pool=pools(st.sampled_from([nan, inf, -inf, -1.0, 0.0, 5e-324, 1e-9, 0.5, 1.0, 80.0, 1e12, 1e308])))
def test_scores_of_accelerators_are_finite_and_within_zero_and_one(pool):
    check(BY_ACCELERATOR, pool)


@given(pool=pools(st.floats(0, 1e6)))
def test_load_in_proportion_is_finite_and_within_zero_and_one(pool):
    check(BY_LOAD, pool)
