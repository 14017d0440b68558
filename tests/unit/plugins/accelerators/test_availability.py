# SPDX-License-Identifier: Apache-2.0
import base64

import numpy as np
import pytest

from epp.framework import PREFIX_MATCH, Headers, PrefixMatch, Request, Scorer
from epp.framework.accelerators.tag import AcceleratorKind, AcceleratorTag, Device, Routability
from epp.framework.snapshot import ACCELERATOR
from epp.framework.testing import candidates, run_profile
from epp.plugins.availability import AcceleratorAvailabilityFilter
from epp.plugins.profile_handlers import MaxScorePicker
from epp.plugins.request_control import SessionAffinityFilter
from tests.support.plugins import built

DRAINING, BLOCKED = Routability.DRAINING, Routability.BLOCKED


def gpu(state=Routability.ROUTABLE, reason="", devices=(), **attributes):
    named = {f"tensor-fusion.ai/{name}": value for name, value in attributes.items()}
    return AcceleratorTag(kind=AcceleratorKind.GPU, state=state, reason=reason, devices=devices, attributes=named)


GPU = gpu()


def build(**parameters):
    return built(AcceleratorAvailabilityFilter, parameters)


def kept(*tags, **parameters):
    return build(**parameters).filter(Request("r"), candidates(records={ACCELERATOR: list(tags)})).tolist()


def with_device(**device):
    return gpu(devices=(Device(id="GPU-0"), Device(id="GPU-1", **device)))


class ByPrefix(Scorer):
    """Scores by the blocks of the prompt that endpoints hold."""

    plugin_type = "by-prefix"
    reads = (PREFIX_MATCH,)

    def score(self, request, candidates):
        return request.get(PREFIX_MATCH).matched_blocks[candidates.slots] / 9


STATES = [gpu(state) for state in Routability]  # routable, draining, blocked, unknown


def test_is_4_only_routable_slices_and_those_of_unknown_state_are_kept():
    assert kept(*STATES) == [True, False, False, True]


def test_is_4_unknown_states_can_be_dropped():
    assert kept(*STATES, onUnknown="Fail") == [True, False, False, False]


def test_is_5_a_slice_that_is_taken_away_gets_nothing_from_the_next_snapshot_on():
    plugin, request = build(), Request("r")
    before = candidates(records={ACCELERATOR: [GPU, GPU]})
    after = candidates(records={ACCELERATOR: [GPU, gpu(DRAINING, "its claim is deleting")]})
    assert plugin.filter(request, before).tolist() == [True, True]
    assert plugin.filter(request, after).tolist() == [True, False]
    assert plugin.rejection(after.records(ACCELERATOR)[1]) == "is draining: its claim is deleting"


def test_is_5_session_and_prefix_no_longer_lead_to_a_slice_that_is_taken_away():
    draining = gpu(DRAINING, "its claim is deleting")
    token = base64.b64encode(b"default/e1").decode()

    def picked(*tags):
        request = Request("r", headers=Headers([("x-session-token", token)]))
        request.put(PREFIX_MATCH, PrefixMatch(np.array([0, 9], dtype=np.int32), 9, block_tokens=64))
        members = [build(), SessionAffinityFilter(), MaxScorePicker(), (ByPrefix(), 1.0)]
        return run_profile(members, candidates(accelerators=tags), request).picked

    assert picked(GPU, GPU) == ("e1",)
    assert picked(GPU, draining) == ("e0",)


def test_is_10_slices_of_a_node_that_is_not_ready_are_dropped():
    assert kept(GPU, gpu(BLOCKED, "DriverError")) == [True, False]


def test_dra_4_a_taint_of_effect_no_execute_drains_and_no_schedule_does_not():
    assert kept(with_device(taints=("NoExecute",)), with_device(taints=("NoSchedule",))) == [False, True]


def test_dra_4_an_unhealthy_device_drains_unless_told_otherwise():
    fleet = [with_device(health=health) for health in ("Unhealthy", "Healthy", "Unknown", "")]
    assert kept(*fleet) == [False, True, True, True]
    assert kept(*fleet, onUnhealthy="Ignore") == [True, True, True, True]


def test_tf_4_only_phase_running_is_kept_and_pending_where_allowed():
    running, pending, failed = (gpu(phase=phase) for phase in ("Running", "Pending", "Failed"))
    waiting = gpu(BLOCKED, phase="Pending")
    assert kept(running, pending, failed, waiting) == [True, False, False, False]
    assert kept(running, pending, failed, waiting, allowPending=True) == [True, True, False, True]


def test_tf_4_of_several_gpus_all_must_be_running_or_pending():
    some, others = gpu(phase="Pending,Running"), gpu(phase="Destroying,Pending")
    assert kept(some, others) == [False, False]
    assert kept(some, others, allowPending=True) == [True, False]
    assert build(allowPending=True).rejection(others) == "phase is Destroying and Pending"


def test_tf_4_pending_excuses_nothing_but_being_pending():
    fleet = [
        gpu(BLOCKED, phase="Pending", usedBy="tensor-fusion"),
        gpu(DRAINING, "its claim is deleting", phase="Pending", usedBy="tensor-fusion"),
        gpu(BLOCKED, phase="Pending", usedBy="nvidia-device-plugin"),
    ]
    assert kept(*fleet, allowPending=True) == [True, False, False]


@pytest.mark.parametrize(
    ("parameters", "allowed", "denied"),
    [
        ({"isolationModes": ["hard"]}, {"isolationMode": "hard"}, {"isolationMode": "soft"}),
        ({"usedBy": ["tensor-fusion"]}, {"usedBy": "tensor-fusion"}, {"usedBy": "nvidia-device-plugin"}),
        ({"partitionTemplates": ["19"]}, {"partitionTemplate": 19}, {"partitionTemplate": 5}),
        ({"maxVramUsed": 0.9}, {"vramUsedFraction": 0.9}, {"vramUsedFraction": 0.91}),
        ({"maxTflopsUsed": 0.5}, {"tflopsUsedFraction": 0}, {"tflopsUsedFraction": 1}),
        ({"minFreeVram": "8Gi"}, {"vramFree": 8 * 2**30}, {"vramFree": 8 * 2**30 - 1}),
        ({"minFreeVram": 8}, {"vramFree": 8 * 2**30}, {"vramFree": 0}),
        ({"minFreeTflops": 40}, {"tflopsFree": 40}, {"tflopsFree": 39}),
        ({"attributes": {"tensor-fusion.ai/tier": ["0"]}}, {"tier": 0}, {"tier": 1}),
    ],
)
def test_tf_4_attributes_allow_and_deny(parameters, allowed, denied):
    assert kept(gpu(**allowed), gpu(**denied), GPU, **parameters) == [True, False, True]
    assert kept(gpu(**allowed), GPU, onUnknown="Fail", **parameters) == [True, False]


@pytest.mark.parametrize(
    ("bound", "physical", "virtual"),
    [
        ({"maxVramUsed": 0.5}, {"vramUsedFraction": 0.6}, {"vramUsedFractionVirtual": 0.3}),
        ({"maxTflopsUsed": 0.5}, {"tflopsUsedFraction": 0.6}, {"tflopsUsedFractionVirtual": 0.3}),
        ({"minFreeVram": 1}, {"vramFree": 0}, {"vramFreeVirtual": 2**30}),
        ({"minFreeTflops": 1}, {"tflopsFree": 0}, {"tflopsFreeVirtual": 5}),
    ],
)
def test_tf_19_room_is_physical_unless_virtual_capacity_counts(bound, physical, virtual):
    oversold = gpu(**physical, **virtual)
    assert kept(oversold, **bound) == [False]
    assert kept(oversold, gpu(**physical), **bound, useVirtualCapacity=True) == [True, False]


def test_tf_4_device_indices_allow_and_deny():
    first, other, half = (
        gpu(devices=tuple(Device(id=str(i), index=i) for i in indices)) for indices in ([0], [0, 2], [0, None])
    )
    assert kept(first, other, half, GPU, deviceIndices=[0, 1]) == [True, False, True, True]
    assert kept(first, other, half, GPU, deviceIndices=[0, 1], onUnknown="Fail") == [True, False, False, False]


def test_two_filters_with_other_parameters_do_not_share_what_they_found():
    pool, request = candidates(records={ACCELERATOR: STATES}), Request("r")
    assert build().filter(request, pool).sum() == 2
    assert build(onUnknown="Fail").filter(request, pool).sum() == 1
