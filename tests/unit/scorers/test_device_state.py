# SPDX-License-Identifier: Apache-2.0
"""Health of devices, and frozen models."""

from math import nan

import pytest

from epp.framework import ConfigurationError, Request, RequestBody
from epp.framework.accelerators.tag import FROZEN, NO_TAG, PHASE, AcceleratorTag, Device
from epp.framework.expected_times import ENDPOINT_RATES
from epp.framework.testing import candidates, endpoint_rates
from epp_scorers.capability import DeviceHealthScorer, WakeUpScorer
from epp_scorers.work_seconds import WorkSecondsScorer
from tests.support.plugins import built
from tests.support.scoring import scores


def devices(*states):
    """Return an endpoint with devices of this health, or with these taints."""
    told = [{"health": state} if isinstance(state, str) else {"taints": state} for state in states]
    return AcceleratorTag(devices=tuple(Device(id=str(i), **state) for i, state in enumerate(told)))


@pytest.mark.parametrize(
    ("tag", "score"),
    [
        (devices("Healthy"), 1.0),
        (devices(("NoSchedule",)), 0.5),
        (devices("Unknown"), 0.5),
        (devices("Unhealthy"), 0.0),
        (devices(("NoExecute", "NoSchedule")), 0.0),
        (devices("Healthy", "Unknown"), 0.5),  # the worst device decides
        (devices("Healthy", "Healthy"), 1.0),
        (devices(""), 1.0),  # nothing is reported
        (NO_TAG, 1.0),
    ],
)
def test_dra_4_health_and_taints_of_the_worst_device_decide(tag, score):
    assert scores(DeviceHealthScorer, [tag]) == [score]


def test_tf_4_pending_gpu_counts_a_quarter():
    tags = [AcceleratorTag(attributes={PHASE: phase}) for phase in ("Pending", "Pending,Running", "Running")]
    assert scores(DeviceHealthScorer, tags) == [0.25, 0.25, 1.0]


MEMORY, DISK = (AcceleratorTag(attributes={FROZEN: place}) for place in ("memory", "disk"))


def test_tf_20_frozen_endpoints_pay_a_penalty_unless_they_have_requests():
    assert scores(WakeUpScorer, [NO_TAG, MEMORY, DISK]) == [1.0, 0.75, 0.0]
    assert scores(WakeUpScorer, [NO_TAG, MEMORY, DISK], memoryPenalty=0, diskPenalty=0.5) == [1.0, 1.0, 0.5]
    found = scores(WakeUpScorer, [DISK] * 4, in_flight=[1, 0, 0, 0], running=[nan, 2, 0, nan])
    assert found == [1.0, 1.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("parameters", "seconds"),
    [({}, [1.0, 2.0, 21.0]), ({"wakeUpFromMemorySeconds": 0.5, "wakeUpFromDiskSeconds": 3}, [1.0, 1.5, 4.0])],
)
def test_tf_20_waking_up_takes_seconds(parameters, seconds):
    request = Request("r", RequestBody(prompt_tokens=1000))
    request.put(ENDPOINT_RATES, endpoint_rates([1000, 1000, 1000]))
    pool = candidates(accelerators=[NO_TAG, MEMORY, DISK], in_flight_tokens=[0, 0, 0])
    assert built(WorkSecondsScorer, parameters).seconds(request, pool).tolist() == seconds


def test_tf_20_penalty_beyond_the_whole_score_is_refused():
    with pytest.raises(ConfigurationError, match="diskPenalty is 2; it must be between 0 and 1"):
        built(WakeUpScorer, {"diskPenalty": 2})


def test_tf_20_endpoint_that_freezes_pays_from_then_on_and_no_more_once_it_is_awake():
    scorer = built(WakeUpScorer)
    pools = [candidates(accelerators=[NO_TAG, tag]) for tag in (NO_TAG, DISK, NO_TAG)]
    found = [scorer.score(Request("r"), pool).tolist() for pool in pools]
    assert found == [[1.0, 1.0], [1.0, 0.0], [1.0, 1.0]]
