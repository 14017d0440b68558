# SPDX-License-Identifier: Apache-2.0
"""Health and taints of devices."""

from epp.framework.accelerators.tag import NO_TAG, PHASE, AcceleratorTag, Device
from epp_scorers.device_state import DeviceHealthScorer


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
