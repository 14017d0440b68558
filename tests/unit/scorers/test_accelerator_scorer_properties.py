# SPDX-License-Identifier: Apache-2.0
"""Whatever tags and metrics say, scores are finite and in [0, 1]."""

from math import inf, nan

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from epp.framework import Request, RequestBody
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
from epp.framework.testing import candidates
from epp_scorers.capability import (
    BestFitScorer,
    DeviceHealthScorer,
    MostCapableScorer,
    SliceFitScorer,
    SliceHeadroomScorer,
)
from epp_scorers.cost import CheapestScorer
from epp_scorers.gpu_packing import (
    CompactFirstScorer,
    GpuNeighbourScorer,
    LowLoadFirstScorer,
    NodeCompactGpuLowLoadScorer,
)
from epp_scorers.load import (
    ActiveRequestScorer,
    LoadAwareScorer,
    QueueScorer,
    RunningRequestsSizeScorer,
    TokenLoadScorer,
)
from epp_scorers.preference_order import FirstAvailableScorer, PreferenceOrderScorer
from epp_scorers.strategies import StrategyScorer
from tests.support.plugins import built

PREFERENCES = [{"class": "b", "score": 30}, {"class": "a", "conditions": [{"promptTokens": ">5"}]}]
SCORERS = [
    (BestFitScorer, {}),
    (BestFitScorer, {"minMemory": 16, "minComputeTFLOPS": 100, "preferredPrecisions": ["fp8", "int4"]}),
    (MostCapableScorer, {}),
    (MostCapableScorer, {"basis": "device", "preferredPrecisions": ["int8", "fp32"]}),
    (CheapestScorer, {}),
    (CheapestScorer, {"basis": "device", "spotPreference": "always", "costBasis": "compute"}),
    (FirstAvailableScorer, {}),
    (FirstAvailableScorer, {"classes": ["b", "a"], "limits": {"a": {"queueDepthThreshold": 1}}}),
    (PreferenceOrderScorer, {"preferenceOrder": PREFERENCES}),
    (CompactFirstScorer, {}),
    (LowLoadFirstScorer, {"vramWeight": 0}),
    (NodeCompactGpuLowLoadScorer, {}),
    (NodeCompactGpuLowLoadScorer, {"combine": "weighted"}),
    (SliceHeadroomScorer, {"mode": "pack"}),
    (SliceFitScorer, {}),
    (SliceFitScorer, {"minMemory": "5Gi"}),
    (SliceFitScorer, {"minComputeSlices": 2}),
    (GpuNeighbourScorer, {}),
    (DeviceHealthScorer, {}),
    (StrategyScorer, {"strategy": "cost"}),
    (StrategyScorer, {"strategy": "performance"}),
]
LOAD_SCORERS = (QueueScorer, RunningRequestsSizeScorer, ActiveRequestScorer, LoadAwareScorer, TokenLoadScorer)

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


BY_ACCELERATOR = [built(plugin, parameters) for plugin, parameters in SCORERS]
BY_LOAD = [built(plugin, {"normalizeBy": "relativeCapacity"}) for plugin in LOAD_SCORERS]


@given(pool=pools(st.sampled_from([nan, inf, -inf, -1.0, 0.0, 5e-324, 1e-9, 0.5, 1.0, 80.0, 1e12, 1e308])))
def test_scores_of_accelerators_are_finite_and_within_zero_and_one(pool):
    check(BY_ACCELERATOR, pool)


@given(pool=pools(st.floats(0, 1e6)))
def test_load_in_proportion_is_finite_and_within_zero_and_one(pool):
    check(BY_LOAD, pool)
