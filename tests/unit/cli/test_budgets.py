# SPDX-License-Identifier: Apache-2.0
"""Flags of what gateways may take, as settings."""

import math

import pytest

from epp.cli.commands import Serve
from epp.cli.settings import budget_settings
from epp.framework import ConfigurationError

MIB = 1024 * 1024


@pytest.mark.parametrize(("body", "gathered"), [(MIB, 256 * MIB), (32 * MIB, 256 * MIB), (200 * MIB, 400 * MIB)])
def test_two_of_the_largest_bodies_fit_by_default(body, gathered):
    assert budget_settings(Serve(max_request_body=body)).max_gathered_bytes == gathered


def test_limit_under_which_a_body_may_never_fit_is_refused_with_the_remedy():
    with pytest.raises(ConfigurationError, match="give it 2097152 or more, or lower --max-request-body"):
        budget_settings(Serve(max_request_body=MIB, max_gathered_bytes=MIB))


def test_no_time_means_no_limit():
    assert budget_settings(Serve(body_timeout=0.0)).body_timeout_seconds == math.inf
    assert budget_settings(Serve()).body_timeout_seconds == 60
