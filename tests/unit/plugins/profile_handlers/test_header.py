# SPDX-License-Identifier: Apache-2.0
"""The profile that a header names."""

import pytest

from epp.framework import Headers, Request
from epp.framework.errors import BadRequestError, InternalError
from epp.framework.testing import candidates
from epp.plugins.pickers import MaxScorePicker
from epp.plugins.profile_handlers import HeaderProfileHandler
from epp.routing.scheduling import Profile, Scheduler
from tests.support.plugins import built

PROFILES = ("decode", "prefill")


def handler(**parameters):
    return built(HeaderProfileHandler, parameters)


def routed(plugin, *headers, profiles=PROFILES):
    """The name of the profile that served a request with these headers."""
    scheduler = Scheduler({name: Profile(name, (), (), MaxScorePicker()) for name in profiles}, plugin, plugin)
    return scheduler.schedule(Request("r", headers=Headers(headers)), candidates(waiting=[0])).primary.profile


def test_header_names_the_profile():
    assert routed(handler(), ("EPP-Profile", "prefill")) == "prefill"
    assert routed(handler(), ("epp-profile", " decode ")) == "decode"


def test_only_that_profile_runs():
    plugin = handler()
    request = Request("r", headers=Headers([("epp-profile", "prefill")]))
    assert plugin.pick_profiles(request, PROFILES, {}) == ("prefill",)
    assert plugin.pick_profiles(request, PROFILES, {"prefill": None}) == ()


def test_another_header_and_default_can_be_named():
    plugin = handler(headerName="X-Phase", defaultProfile="prefill")
    assert routed(plugin, ("x-phase", "decode")) == "decode"
    assert routed(plugin, ("epp-profile", "decode")) == "prefill"


@pytest.mark.parametrize("headers", [[], [("EPP-Profile", "")], [("EPP-Profile", "  ")]])
def test_without_a_name_the_default_profile_runs(headers):
    assert routed(handler(), *headers) == "decode"


def test_unknown_profile_is_the_callers_mistake():
    with pytest.raises(BadRequestError) as refused:
        routed(handler(), ("EPP-Profile", "encode"))
    assert refused.value.status == 400
    assert refused.value.sentence == (
        "inference error: BadRequest - header 'EPP-Profile' names profile 'encode', which does not exist; "
        "profiles are decode, prefill"
    )


def test_only_profile_needs_no_header_and_no_name():
    assert routed(handler(), profiles=("everything",)) == "everything"
    with pytest.raises(BadRequestError, match="names profile 'decode'"):
        routed(handler(), ("EPP-Profile", "decode"), profiles=("everything",))


def test_default_that_does_not_exist_is_the_configurations_mistake():
    with pytest.raises(InternalError, match="nowhere"):
        routed(handler(defaultProfile="nowhere"))


def test_default_that_does_not_exist_is_warned_of_where_it_matters():
    assert handler().check_profiles(PROFILES) == ()
    assert handler().check_profiles(("everything",)) == ()
    assert handler(defaultProfile="nowhere").check_profiles(PROFILES) == (
        (
            "defaultProfile: profile 'nowhere' does not exist; profiles are decode, prefill: requests without header "
            "'EPP-Profile' fail"
        ),
    )


def test_its_result_is_the_result(sent_to):
    result = sent_to(candidates(waiting=[0]), 0).primary
    assert handler().aggregate(Request("r"), {"decode": result}).primary is result
    assert handler().aggregate(Request("r"), {"decode": None}) is None
