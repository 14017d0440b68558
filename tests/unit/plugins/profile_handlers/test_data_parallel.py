# SPDX-License-Identifier: Apache-2.0
"""One port for all ranks of a pod."""

import numpy as np
import pytest

from epp.framework import Candidates, Endpoint, Records, Request, Snapshot
from epp.framework.errors import UnmetConstraintError
from epp.plugins.filters.labels import LabelSelectorFilter, LabelSelectorParameters
from epp.plugins.pickers import MaxScorePicker, PickerParameters
from epp.plugins.profile_handlers import DataParallelProfileHandler
from epp.routing.scheduling import Profile, ProfileFilter, Scheduler
from tests.support.plugins import built


def handler(**parameters):
    return built(DataParallelProfileHandler, parameters)


def ranks(*addresses):
    endpoints = tuple(Endpoint(f"rank-{i}", ip, port) for i, (ip, port) in enumerate(addresses))
    slots = np.arange(len(endpoints), dtype=np.intp)
    return Candidates(Snapshot(slots=slots, available=slots, endpoints=Records(endpoints)), slots)


def routed(plugin, pool, *, filters=(), targets=1):
    picker = MaxScorePicker(PickerParameters(max_num_of_endpoints=targets))
    profile = Profile("default", tuple(map(ProfileFilter, filters)), (), picker)
    return Scheduler({"default": profile}, plugin, plugin).schedule(Request("r"), pool)


def test_gateway_gets_the_primary_port_and_the_pod_the_rank():
    result = routed(handler(), ranks(("10.0.0.1", 8003)))
    assert result.destination.addresses == ("10.0.0.1:8000",)
    assert result.destination.headers == {"x-data-parallel-host-port": "10.0.0.1:8003"}
    assert result.targets[0].port == 8003  # the books are kept of the rank


def test_ipv6_addresses_are_in_brackets():
    result = routed(handler(primaryPort=9000), ranks(("fd00::1", 9002)))
    assert result.destination.addresses == ("[fd00::1]:9000",)
    assert result.destination.headers == {"x-data-parallel-host-port": "[fd00::1]:9002"}


def test_every_target_is_told_with_the_primary_port():
    result = routed(handler(), ranks(("10.0.0.1", 8001), ("10.0.0.2", 8002)), targets=2)
    assert sorted(result.destination.addresses) == ["10.0.0.1:8000", "10.0.0.2:8000"]
    assert result.destination.headers == {"x-data-parallel-host-port": result.targets[0].hostport}


def test_failed_profile_fails_the_request():
    none = LabelSelectorFilter(LabelSelectorParameters(match_labels={"no": "such"}))
    with pytest.raises(UnmetConstraintError):
        routed(handler(), ranks(("10.0.0.1", 8001)), filters=(none,))


def test_several_profiles_are_too_many():
    with pytest.raises(ValueError, match="takes one profile, not 2: a, b"):
        handler().check_profiles(("a", "b"))
    assert handler().check_profiles(("a",)) == ()
