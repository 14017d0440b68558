"""Flags as deployments of the Go picker write them."""

from typing import Annotated

import pytest
import typer.main
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs
from typer.testing import CliRunner

from epp.cli.app import application
from epp.cli.flags import (
    SWITCHES,
    Switch,
    UnsupportedFlagError,
    duration_option,
    go_spelling,
    size_option,
    tls_version_option,
)

SIZE_UNITS = {"": 1, "k": 1_000, "M": 1_000_000, "G": 1_000_000_000, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30}
measures = typer.Typer(pretty_exceptions_enable=False, rich_markup_mode=None)


@measures.command()
def show(
    size: Annotated[int, size_option(text="A size.")] = 64,
    wait: Annotated[float, duration_option(text="A time.")] = 0.05,
    tls: Annotated[str, tls_version_option(text="A version.")] = "1.2",
) -> None:
    typer.echo(f"{size} {wait}")


def measured(*arguments: str) -> str:
    return CliRunner().invoke(measures, arguments).output


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
        assert go_spelling(
            ["serve", *given_arguments, "--grpc-port=1"][: 2 if flags == ["--pool-group"] else None]
        ) == (["serve"] if flags == ["--pool-group"] else ["serve", "--grpc-port=1"])
    assert [(entry["event"], entry["flag"]) for entry in logs] == [("flag has no effect", flag) for flag in flags]


def test_flag_without_effect_may_stand_last_without_its_value():
    with capture_logs():
        assert go_spelling(["serve", "--pool-group"]) == ["serve"]


@pytest.mark.parametrize("argument", ["--ha-enable-leader-election", "--tls-cipher-suites=x", "--endpoint-selector"])
def test_flag_that_a_deployment_relies_on_is_refused(argument):
    name = argument.partition("=")[0]
    with pytest.raises(UnsupportedFlagError, match=f"^{name} is known, but not supported yet$"):
        go_spelling(["serve", argument, "x"])


@given(st.lists(st.sampled_from([*sorted(SWITCHES), "--grpc-port", "9", "-v", "-v=1", "--cert-path=/c", "x", "-h"])))
def test_spelling_twice_is_spelling_once(arguments):
    once = go_spelling(arguments)
    assert go_spelling(once) == once
    assert not SWITCHES & set(once)


@given(st.integers(0, 10**12), st.sampled_from(sorted(SIZE_UNITS)))
def test_size_is_its_number_times_its_unit(number, unit):
    assert measured("--size", f"{number}{unit}") == f"{number * SIZE_UNITS[unit]} 0.05\n"


def test_duration_is_seconds():
    assert measured("--wait", "1m30s") == "64 90.0\n"
    assert measured("--wait=250ms") == "64 0.25\n"


def test_defaults_are_taken_as_they_are():
    assert measured() == "64 0.05\n"


@pytest.mark.parametrize("size", ["", "-1", "64 Mi", "64mi", "64MiB", "Mi"])
def test_bad_size_is_named_with_the_units(size):
    assert f"{size!r} is not a quantity: write 0 or more, with k, M, G, T, Ki, Mi, Gi" in measured(f"--size={size}")


@pytest.mark.parametrize("wait", ["", "5", "-1s", "5 s", "1d"])
def test_bad_duration_is_named(wait):
    assert f"{wait!r} is not a duration" in measured(f"--wait={wait}")


@pytest.mark.parametrize("version", ["VersionTLS12", "1.2"])
def test_tls_1_2_is_the_lower_bound_that_grpc_holds(version):
    assert measured(f"--tls={version}") == "64 0.05\n"


@pytest.mark.parametrize("version", ["VersionTLS13", "1.3"])
def test_tls_1_3_as_a_lower_bound_is_refused_with_the_reason_and_the_remedy(version):
    said = measured(f"--tls={version}")
    assert f"{version!r} cannot be had: gRPC for Python takes TLS 1.2 and 1.3" in said
    assert "tls_params.tls_minimum_protocol_version" in said


@pytest.mark.parametrize("version", ["", "VersionTLS11", "1.1", "TLS12", "2"])
def test_other_tls_versions_are_no_lower_bound(version):
    assert f"{version!r} is not taken: write VersionTLS12" in measured(f"--tls={version}")
