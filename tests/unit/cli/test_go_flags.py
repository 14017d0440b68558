"""Flags as deployments of the Go picker write them."""

import pytest
import typer.main
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from epp.cli.app import application
from epp.cli.go_flags import SWITCHES, UnsupportedFlagError, go_spelling
from epp.cli.options import Switch


def test_switches_are_exactly_the_options_whose_default_is_a_switch():
    commands = typer.main.get_command(application()).commands
    declared = {
        option
        for name in ("serve", "gateway")
        for parameter in commands[name].params
        if isinstance(parameter.default, Switch)
        for option in parameter.opts
    }
    assert declared == SWITCHES


@pytest.mark.parametrize(
    ("given_arguments", "taken"),
    [
        (["serve", "--secure-serving"], ["serve", "--secure-serving=true"]),
        (["serve", "--secure-serving=false"], ["serve", "--secure-serving=false"]),
        (["--health-checking", "--grpc-port", "1"], ["--health-checking=true", "--grpc-port", "1"]),
        (["-v", "4"], ["-v", "4"]),
        (["-v=4"], ["-v", "4"]),
        (["--v=4"], ["-v", "4"]),
        (["--v", "4"], ["-v", "4"]),
        (["--pool-name=p", "--endpoints", "a:1"], ["--pool-name=p", "--endpoints", "a:1"]),
        ([], []),
    ],
)
def test_go_spelling_is_rewritten(given_arguments, taken):
    assert go_spelling(given_arguments) == taken


@pytest.mark.parametrize(
    ("given_arguments", "flags"),
    [
        (["--tracing"], ["--tracing"]),
        (["--tracing=false"], ["--tracing"]),
        (["--pool-namespace", "x"], ["--pool-namespace"]),
        (["--pool-namespace=x"], ["--pool-namespace"]),
        (["--zap-encoder", "json", "--zap-devel"], ["--zap-encoder", "--zap-devel"]),
        (["--ha-enable-leader-election=false"], ["--ha-enable-leader-election"]),
    ],
)
def test_flag_without_effect_is_dropped_with_its_value_and_a_warning(given_arguments, flags):
    with capture_logs() as logs:
        assert go_spelling(["serve", *given_arguments, "--grpc-port=1"]) == ["serve", "--grpc-port=1"]
    assert [(entry["event"], entry["flag"]) for entry in logs] == [("flag has no effect", flag) for flag in flags]


def test_flag_without_effect_may_stand_last_without_its_value():
    with capture_logs():
        assert go_spelling(["serve", "--pool-group"]) == ["serve"]


@pytest.mark.parametrize(
    ("argument", "remedy"),
    [
        ("--ha-enable-leader-election", "leave it out; every replica serves requests"),
        ("--tls-cipher-suites=x", "leave it out; gRPC chooses the cipher suites"),
        ("--endpoint-selector", "name the endpoints with --endpoints, or in a file for file-discovery"),
    ],
)
def test_flag_that_a_deployment_relies_on_is_refused_with_the_remedy(argument, remedy):
    name = argument.partition("=")[0]
    with pytest.raises(UnsupportedFlagError, match=f"^{name}, a flag of llm-d-router, is not supported: {remedy}$"):
        go_spelling(["serve", argument, "x"])


@given(st.lists(st.sampled_from([*sorted(SWITCHES), "--grpc-port", "9", "-v", "-v=1", "--cert-path=/c", "x", "-h"])))
def test_spelling_twice_is_spelling_once(arguments):
    once = go_spelling(arguments)
    assert go_spelling(once) == once
    assert not SWITCHES & set(once)
