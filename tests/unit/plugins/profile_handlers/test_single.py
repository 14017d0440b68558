# SPDX-License-Identifier: Apache-2.0
"""One profile, one run."""

from epp.framework import Request
from epp.framework.testing import candidates
from epp.plugins.profile_handlers import SingleProfileHandler

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
