# SPDX-License-Identifier: Apache-2.0
"""Handlers that run one profile for each request."""

import numpy as np
import pytest

from epp.framework import Candidates, Endpoint, Headers, Records, Request, Snapshot
from epp.framework.errors import BadRequestError, InternalError
from epp.framework.refusals import UnmetConstraintError
from epp.framework.testing import candidates
from epp.plugins.label_filters import LabelSelectorFilter, LabelSelectorParameters
from epp.plugins.profile_handlers import (
    DataParallelProfileHandler,
    HeaderProfileHandler,
    MaxScorePicker,
    PickerParameters,
    SingleProfileHandler,
)
from epp.routing.scheduling.profile import Profile, ProfileFilter
from epp.routing.scheduling.scheduler import Scheduler
from tests.support.plugins import built
from tests.support.results import sent_to

REQUEST = Request("r")


@pytest.mark.parametrize("handler", [SingleProfileHandler(), HeaderProfileHandler()])
def test_profile_runs_once_and_its_result_is_the_result(handler):
    assert handler.pick_profiles(REQUEST, ["default"], {}) == ["default"]
    assert not handler.pick_profiles(REQUEST, ["default"], {"default": None})
    result = sent_to(candidates(waiting=[0]), 0).primary
    assert handler.aggregate(REQUEST, {"default": result}).primary is result
    assert handler.aggregate(REQUEST, {"default": None}) is None


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


@pytest.mark.parametrize(
    ("parameters", "rank", "told", "header"),
    [
        ({}, ("10.0.0.1", 8003), "10.0.0.1:8000", "10.0.0.1:8003"),
        ({"primaryPort": 9000}, ("fd00::1", 9002), "[fd00::1]:9000", "[fd00::1]:9002"),
    ],
)
def test_gateway_gets_the_primary_port_and_the_pod_the_rank(parameters, rank, told, header):
    result = routed(handler(**parameters), ranks(rank))
    assert result.destination.addresses == (told,)
    assert result.destination.headers == {"x-data-parallel-host-port": header}
    assert result.targets[0].port == rank[1]  # the books are kept of the rank


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


PROFILES = ("decode", "prefill")


def by_header(**parameters):
    return built(HeaderProfileHandler, parameters)


def routed_by_header(plugin, *headers, profiles=PROFILES):
    """Return the name of the profile that serves a request with these headers."""
    scheduler = Scheduler({name: Profile(name, (), (), MaxScorePicker()) for name in profiles}, plugin, plugin)
    return scheduler.schedule(Request("r", headers=Headers(headers)), candidates(waiting=[0])).primary.profile


@pytest.mark.parametrize(
    ("parameters", "headers", "profile"),
    [
        ({}, [("EPP-Profile", "prefill")], "prefill"),
        ({}, [("epp-profile", " decode ")], "decode"),
        # another header and default can be named
        ({"headerName": "X-Phase", "defaultProfile": "prefill"}, [("x-phase", "decode")], "decode"),
        ({"headerName": "X-Phase", "defaultProfile": "prefill"}, [("epp-profile", "decode")], "prefill"),
        # without a name the default profile runs
        ({}, [], "decode"),
        ({}, [("EPP-Profile", "")], "decode"),
        ({}, [("EPP-Profile", "  ")], "decode"),
    ],
)
def test_header_names_the_profile(parameters, headers, profile):
    assert routed_by_header(by_header(**parameters), *headers) == profile


def test_only_that_profile_runs():
    plugin = by_header()
    request = Request("r", headers=Headers([("epp-profile", "prefill")]))
    assert plugin.pick_profiles(request, PROFILES, {}) == ("prefill",)
    assert plugin.pick_profiles(request, PROFILES, {"prefill": None}) == ()


def test_unknown_profile_is_the_callers_mistake():
    with pytest.raises(BadRequestError) as refused:
        routed_by_header(by_header(), ("EPP-Profile", "encode"))
    assert refused.value.status == 400
    assert refused.value.sentence == (
        "inference error: BadRequest - header 'EPP-Profile' names profile 'encode', which does not exist; "
        "profiles are decode, prefill"
    )


def test_only_profile_needs_no_header_and_no_name():
    assert routed_by_header(by_header(), profiles=("everything",)) == "everything"
    with pytest.raises(BadRequestError, match="names profile 'decode'"):
        routed_by_header(by_header(), ("EPP-Profile", "decode"), profiles=("everything",))


def test_default_that_does_not_exist_is_the_configurations_mistake():
    with pytest.raises(InternalError, match="nowhere"):
        routed_by_header(by_header(defaultProfile="nowhere"))


def test_default_that_does_not_exist_is_warned_of_where_it_matters():
    assert by_header().check_profiles(PROFILES) == ()
    assert by_header().check_profiles(("everything",)) == ()
    (warning,) = by_header(defaultProfile="nowhere").check_profiles(PROFILES)
    assert warning == (
        "defaultProfile: profile 'nowhere' does not exist; profiles are decode, prefill: requests without header "
        "'EPP-Profile' fail"
    )
