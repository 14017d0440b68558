# SPDX-License-Identifier: Apache-2.0
"""Flags as the settings of components, with the errors of those that contradict."""

import math

import pytest
from typer.testing import CliRunner

from epp.cli.app import application
from epp.cli.commands import Serve
from epp.cli.options import filled, parameters
from epp.cli.settings import budget_settings
from epp.framework import ConfigurationError

MIB = 1024 * 1024


def serve_flags(**changed: object) -> Serve:
    """The flags of `epp serve` as its parameters set them."""
    defaults = {name: each.default for name, each in parameters(Serve).parameters.items()}
    return filled(Serve, {**defaults, **changed})


def test_flags_set_the_fields_of_a_component():
    flags = serve_flags(outlier_consecutive_5xx=7, outlier_base_ejection_time=2.0, pool_name="pool")
    assert (flags.outliers.consecutive_5xx, flags.outliers.base_ejection_seconds, flags.pool_name) == (7, 2.0, "pool")
    assert flags.outliers.max_ejection_percent == Serve().outliers.max_ejection_percent


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--outlier-base-ejection-time=0"], "--outlier-base-ejection-time: must be greater than 0"),
        (
            ["--outlier-max-ejection-time=1s"],
            "--outlier-max-ejection-time: 1s is shorter than --outlier-base-ejection-time, 10s",
        ),
    ],
)
def test_contradiction_is_an_error_in_one_line(arguments, error):
    ended = CliRunner().invoke(application(), ["serve", *arguments])
    assert ended.exit_code == 1
    assert ended.output.startswith(f"error: {error}")
    assert ended.output.count("\n") == 1


@pytest.mark.parametrize(("body", "gathered"), [(MIB, 256 * MIB), (32 * MIB, 256 * MIB), (200 * MIB, 400 * MIB)])
def test_two_of_the_largest_bodies_fit_by_default(body, gathered):
    assert budget_settings(Serve(max_request_body=body)).max_gathered_bytes == gathered


def test_limit_under_which_a_body_may_never_fit_is_refused_with_the_remedy():
    with pytest.raises(ConfigurationError, match="give it 2097152 or more, or lower --max-request-body"):
        budget_settings(Serve(max_request_body=MIB, max_gathered_bytes=MIB))


def test_no_time_means_no_limit():
    assert budget_settings(Serve(body_timeout=0.0)).body_timeout_seconds == math.inf
    assert budget_settings(Serve()).body_timeout_seconds == 60
