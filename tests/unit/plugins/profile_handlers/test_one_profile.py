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

REQUEST = Request("r")


def test_profile_runs_once_whatever_comes_of_it():
    handler = SingleProfileHandler()
    assert handler.pick_profiles(REQUEST, ["default"], {}) == ["default"]
    assert not handler.pick_profiles(REQUEST, ["default"], {"default": None})


def test_its_result_is_the_result(sent_to):
    result = sent_to(candidates(waiting=[0]), 0).primary
    assert SingleProfileHandler().aggregate(REQUEST, {"default": result}).primary is result


def test_failed_profile_leaves_no_result():
    assert SingleProfileHandler().aggregate(REQUEST, {"default": None}) is None


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


PROFILES = ("decode", "prefill")


def by_header(**parameters):
    return built(HeaderProfileHandler, parameters)


def routed_by_header(plugin, *headers, profiles=PROFILES):
    """The name of the profile that served a request with these headers."""
    scheduler = Scheduler({name: Profile(name, (), (), MaxScorePicker()) for name in profiles}, plugin, plugin)
    return scheduler.schedule(Request("r", headers=Headers(headers)), candidates(waiting=[0])).primary.profile


def test_header_names_the_profile():
    assert routed_by_header(by_header(), ("EPP-Profile", "prefill")) == "prefill"
    assert routed_by_header(by_header(), ("epp-profile", " decode ")) == "decode"


def test_only_that_profile_runs():
    plugin = by_header()
    request = Request("r", headers=Headers([("epp-profile", "prefill")]))
    assert plugin.pick_profiles(request, PROFILES, {}) == ("prefill",)
    assert plugin.pick_profiles(request, PROFILES, {"prefill": None}) == ()


def test_another_header_and_default_can_be_named():
    plugin = by_header(headerName="X-Phase", defaultProfile="prefill")
    assert routed_by_header(plugin, ("x-phase", "decode")) == "decode"
    assert routed_by_header(plugin, ("epp-profile", "decode")) == "prefill"


@pytest.mark.parametrize("headers", [[], [("EPP-Profile", "")], [("EPP-Profile", "  ")]])
def test_without_a_name_the_default_profile_runs(headers):
    assert routed_by_header(by_header(), *headers) == "decode"


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
    assert by_header(defaultProfile="nowhere").check_profiles(PROFILES) == (
        (
            "defaultProfile: profile 'nowhere' does not exist; profiles are decode, prefill: requests without header "
            "'EPP-Profile' fail"
        ),
    )


def test_result_of_the_named_profile_is_the_result(sent_to):
    result = sent_to(candidates(waiting=[0]), 0).primary
    assert by_header().aggregate(Request("r"), {"decode": result}).primary is result
    assert by_header().aggregate(Request("r"), {"decode": None}) is None
