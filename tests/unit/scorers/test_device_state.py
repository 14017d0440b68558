# SPDX-License-Identifier: Apache-2.0
"""Health of devices, and frozen models."""

from math import nan

import pytest

from epp.framework import ConfigurationError, ManualClock, Request, RequestBody
from epp.framework.accelerators.tag import FROZEN, NO_TAG, PHASE, AcceleratorTag, Device
from epp.framework.rates import ENDPOINT_RATES
from epp.framework.registry import Registry
from epp.framework.testing import candidates, endpoint_rates
from epp_scorers.capability import DeviceHealthScorer, WakeUpScorer
from epp_scorers.work_seconds import WorkSecondsScorer


def devices(*states):
    return AcceleratorTag(devices=tuple(Device(id=str(i), **state) for i, state in enumerate(states)))


def test_dra_4_no_schedule_is_kept_at_half(scores):
    tags = [devices({"health": "Healthy"}), devices({"taints": ("NoSchedule",)}), devices({"health": "Unknown"})]
    assert scores(DeviceHealthScorer, tags) == [1.0, 0.5, 0.5]


def test_dra_4_unhealthy_and_no_execute_get_nothing(scores):
    tags = [devices({"health": "Unhealthy"}), devices({"health": "Healthy", "taints": ("NoExecute", "NoSchedule")})]
    assert scores(DeviceHealthScorer, tags) == [0.0, 0.0]


def test_worst_device_decides(scores):
    tags = [
        devices({"health": "Healthy"}, {"health": "Unknown"}),
        devices({"health": "Healthy"}, {"health": "Healthy"}),
    ]
    assert scores(DeviceHealthScorer, tags) == [0.5, 1.0]


def test_nobody_says_anything_is_healthy(scores):
    assert scores(DeviceHealthScorer, [NO_TAG, devices({})]) == [1.0, 1.0]


def test_tf_4_pending_gpu_counts_a_quarter(scores):
    tags = [AcceleratorTag(attributes={PHASE: phase}) for phase in ("Pending", "Pending,Running", "Running")]
    assert scores(DeviceHealthScorer, tags) == [0.25, 0.25, 1.0]


MEMORY, DISK = (AcceleratorTag(attributes={FROZEN: place}) for place in ("memory", "disk"))


def build(plugin, **parameters):
    registry = Registry({})
    registry.register(plugin)
    return registry.build(plugin.plugin_type, parameters, name="s", clock=ManualClock())


def test_tf_20_frozen_endpoints_pay_a_penalty(scores):
    assert scores(WakeUpScorer, [NO_TAG, MEMORY, DISK]) == [1.0, 0.75, 0.0]
    assert scores(WakeUpScorer, [NO_TAG, MEMORY, DISK], memoryPenalty=0, diskPenalty=0.5) == [1.0, 1.0, 0.5]


def test_tf_20_endpoint_with_requests_is_awake(scores):
    columns = {"in_flight": [1, 0, 0, 0], "running": [nan, 2, 0, nan]}
    assert scores(WakeUpScorer, [DISK] * 4, columns=columns) == [1.0, 1.0, 0.0, 0.0]


def test_tf_20_waking_up_takes_seconds():
    request = Request("r", RequestBody(prompt_tokens=1000))
    request.put(ENDPOINT_RATES, endpoint_rates([1000, 1000, 1000]))
    pool = candidates(accelerators=[NO_TAG, MEMORY, DISK], in_flight_tokens=[0, 0, 0])
    assert build(WorkSecondsScorer).seconds(request, pool).tolist() == [1.0, 2.0, 21.0]
    own = build(WorkSecondsScorer, wakeUpFromMemorySeconds=0.5, wakeUpFromDiskSeconds=3)
    assert own.seconds(request, pool).tolist() == [1.0, 1.5, 4.0]


def test_tf_20_penalty_beyond_the_whole_score_is_refused():
    with pytest.raises(ConfigurationError, match="diskPenalty is 2; it must be between 0 and 1"):
        build(WakeUpScorer, diskPenalty=2)


def test_tf_20_endpoint_that_freezes_pays_from_then_on_and_no_more_once_it_is_awake():
    scorer = build(WakeUpScorer)
    found = [
        scorer.score(Request("r"), candidates(accelerators=[NO_TAG, tag])).tolist() for tag in (NO_TAG, DISK, NO_TAG)
    ]
    assert found == [[1.0, 1.0], [1.0, 0.0], [1.0, 1.0]]
