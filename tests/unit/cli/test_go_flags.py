# SPDX-License-Identifier: Apache-2.0
"""Flags as deployments of the Go picker write them."""

from functools import cache

import pytest
import typer.core
import typer.main
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs
from typer.testing import CliRunner

from epp.cli.app import application
from epp.cli.commands import COMMANDS
from epp.cli.options import go_spelling, is_switch, lists_joined
from epp.cli.picker_flags import Serve
from epp.cli.serve import log_style
from epp.lab.gateway.settings import ClusterType, FailureMode
from epp.telemetry.logs import LogStyle

SWITCHES = frozenset({"--secure-serving", "--strict"})
TRUE = ["1", "t", "T", "true", "True", "TRUE"]
FALSE = ["0", "f", "F", "false", "False", "FALSE"]


@cache
def commands() -> dict[str, typer.core.TyperCommand]:
    """All commands by name, those of groups too."""
    found = {}
    for name, command in typer.main.get_command(application()).commands.items():
        inner = getattr(command, "commands", None)
        found |= {name: command} if inner is None else {f"{name} {word}": each for word, each in inner.items()}
    return found


BOOLEAN_FLAGS = [
    (name, parameter.opts[0])
    for name, command in commands().items()
    for parameter in command.params
    if is_switch(parameter)
]


REQUIRED = {
    "check": ["a.yaml"],
    "replay": ["a.jsonl", "--config=c"],
    "tune": ["a.jsonl", "--endpoints=b", "--config=c", "--objective=p90-ttft"],
}


def parsed(name: str, *arguments: str) -> dict[str, object]:
    """The values that a command would run with."""
    return commands()[name].make_context(name, [*REQUIRED.get(name, ()), *arguments]).params


@pytest.mark.parametrize(("name", "flag"), BOOLEAN_FLAGS)
def test_every_boolean_flag_takes_every_spelling_with_and_without_an_equals_sign(name, flag):
    field = flag.removeprefix("--").replace("-", "_")
    assert parsed(name, flag)[field] is True
    for spellings, expected in ((TRUE, True), (FALSE, False)):
        for spelling in spellings:
            assert parsed(name, f"{flag}={spelling}")[field] is expected
            assert parsed(name, flag, spelling)[field] is expected


def test_no_command_has_a_boolean_flag_of_another_kind():
    assert {"--secure-serving", "--health-checking", "--print-envoy-config", "--strict", "--fit"} <= {
        flag for _, flag in BOOLEAN_FLAGS
    }
    assert commands().keys() == COMMANDS.keys()
    others = [
        option for command in commands().values() for option in command.params if getattr(option, "is_flag", False)
    ]
    assert not others


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("serve --secure-serving=yes", "'--secure-serving': 'yes' is neither true nor false: write one of 1, t"),
        ("trace make --like abacus --rate 1", "'--like': 'abacus' is not one of 'azure-code', "),
    ],
)
def test_value_that_is_none_of_the_choices_is_refused_with_the_choices(command, said):
    shown = CliRunner().invoke(application(), command.split())
    assert shown.exit_code == 2
    assert f"Invalid value for {said}" in shown.output


def test_choices_are_those_of_the_programs_behind():
    choices = {option.name: option.type_descriptor.choices for each in commands().values() for option in each.params}
    assert choices["cluster_type"] == tuple(ClusterType)
    assert choices["failure_mode"] == tuple(FailureMode)


@pytest.mark.parametrize(
    ("arguments", "files", "strict"),
    [
        (["--strict", "a.yaml"], ["a.yaml"], True),
        (["--strict", "false", "a.yaml"], ["a.yaml"], False),
        (["a.yaml", "--strict", "--output", "json"], ["a.yaml"], True),
        (["--strict", "./true"], ["true"], True),
        (["--strict", "--", "true"], ["true"], True),
        (["--strict=1", "1"], ["1"], True),
    ],
)
def test_word_after_a_boolean_flag_is_its_value_only_where_it_is_a_boolean(arguments, files, strict):
    values = typer.main.get_command(application()).commands["check"].make_context("check", arguments).params
    assert [str(path) for path in values["files"]] == files
    assert values["strict"] is strict


@pytest.mark.parametrize(
    ("given_arguments", "taken"),
    [
        (["--secure-serving"], ["--secure-serving=true"]),
        (["--secure-serving=false"], ["--secure-serving=false"]),
        (["--secure-serving", "false", "x"], ["--secure-serving=false", "x"]),
        (["--secure-serving", "--grpc-port", "1"], ["--secure-serving=true", "--grpc-port", "1"]),
        (["--", "--secure-serving"], ["--", "--secure-serving"]),
        (["-v", "4"], ["-v", "4"]),
        (["-v=4"], ["-v", "4"]),
        (["--v=4"], ["-v", "4"]),
        (["--v", "4"], ["-v", "4"]),
        (["--pool-name=p", "--endpoints", "a:1"], ["--pool-name=p", "--endpoints", "a:1"]),
        ([], []),
    ],
)
def test_go_spelling_is_rewritten(given_arguments, taken):
    assert go_spelling(given_arguments, SWITCHES) == (taken, [])


@pytest.mark.parametrize(
    ("given_arguments", "taken"),
    [
        (["--pool-name=a", "--pool-name", "b", "--grpc-port=1"], ["--grpc-port=1", "--pool-name=a,b"]),
        (["--objects=x,y", "--pool-name=a", "--objects=z"], ["--objects=x,y,z", "--pool-name=a"]),
        (["--pool-name"], ["--pool-name"]),
        (["--pool-name=a", "--", "--pool-name=b"], ["--pool-name=a", "--", "--pool-name=b"]),
    ],
)
def test_repeated_lists_are_one_list(given_arguments, taken):
    assert lists_joined(given_arguments, {"--pool-name", "--objects"}) == taken


def test_flags_with_lists_may_be_repeated():
    assert parsed("serve", "--pool-name=a", "--pool-name=b")["pool_name"] == "a,b"
    assert parsed("serve", "--endpoints=a:1", "--endpoints=b:1")["endpoints"] == ["a:1", "b:1"]


@pytest.mark.parametrize("given_arguments", ["--enable-pprof", "--enable-pprof=false", "--enable-pprof false"])
def test_flag_without_effect_is_dropped_with_its_value(given_arguments):
    assert go_spelling([*given_arguments.split(), "--grpc-port=1"]) == (["--grpc-port=1"], ["--enable-pprof"])


@pytest.mark.parametrize(
    ("flags", "style"),
    [
        ({"zap_devel": True}, LogStyle("console")),
        ({"zap_devel": False}, LogStyle("json")),
        ({"zap_devel": True, "zap_encoder": "json"}, LogStyle("json")),
        ({"zap_stacktrace_level": "panic"}, LogStyle(tracebacks=False)),
    ],
)
def test_flags_of_zap_style_log_lines(flags, style):
    assert log_style(Serve(**flags)) == style


def test_flag_without_effect_is_a_warning(monkeypatch):
    monkeypatch.setattr("epp.telemetry.logs.configure", lambda: None)  # keeps the lines captured
    with capture_logs() as logs:
        parsed("serve", "--enable-pprof=false")
    assert [(entry["event"], entry["flag"]) for entry in logs] == [("flag has no effect", "--enable-pprof")]


@given(st.lists(st.sampled_from([*sorted(SWITCHES), "true", "0", "--grpc-port", "9", "-v", "-v=1", "x", "--", "-h"])))
def test_spelling_twice_is_spelling_once(arguments):
    once = go_spelling(arguments, SWITCHES).arguments
    assert go_spelling(once, SWITCHES).arguments == once
    options = once[: once.index("--")] if "--" in once else once
    assert not SWITCHES & set(options)
