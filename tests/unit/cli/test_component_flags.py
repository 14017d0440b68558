# SPDX-License-Identifier: Apache-2.0
"""Flags as the settings of components, with the errors of those that contradict."""

import math

import pytest
from typer.testing import CliRunner

from epp.cli.app import application
from epp.cli.commands import Serve
from epp.cli.options import filled, parameters

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
        ("--outlier-base-ejection-time=0", "--outlier-base-ejection-time: must be greater than 0"),
        ("--outlier-max-ejection-time=1s", "--outlier-max-ejection-time: 1s is shorter than --outlier-base-ejection"),
        (
            "--max-request-body=1Mi --max-gathered-bytes=1Mi",
            "--max-gathered-bytes 1048576 is too little for bodies of --max-request-body 1048576: give it 2097152 or",
        ),
    ],
)
def test_contradiction_is_an_error_in_one_line(arguments, error):
    ended = CliRunner().invoke(application(), ["serve", *arguments.split()])
    assert ended.exit_code == 1
    assert ended.output.startswith(f"error: {error}")
    assert ended.output.count("\n") == 1


@pytest.mark.parametrize(("body", "gathered"), [(MIB, 256 * MIB), (32 * MIB, 256 * MIB), (200 * MIB, 400 * MIB)])
def test_two_of_the_largest_bodies_fit_by_default(body, gathered):
    assert serve_flags(max_request_body=body).budgets.gathered_bytes == gathered


def test_no_time_means_no_limit():
    assert serve_flags(body_timeout=0.0).budgets.pause_seconds == math.inf
    assert serve_flags().budgets.pause_seconds == 60
