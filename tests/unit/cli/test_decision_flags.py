# SPDX-License-Identifier: Apache-2.0
"""Flags of decisions: what they come to, and that none is without effect."""

import io
from pathlib import Path

import pytest

from epp.cli.options import filled, parameters
from epp.cli.picker_flags import Gateway, PickerFlags, Serve
from epp.cli.serve import picker_settings
from epp.extproc.settings import ServerSettings
from epp.framework import ConfigurationError
from epp.telemetry.logs import LogWriter
from epp.telemetry.settings import AdminSettings, DecisionSettings

ADMIN = AdminSettings(port=0)


def decisions(flags: PickerFlags) -> DecisionSettings | None:
    server = ServerSettings()
    return picker_settings(flags, server, host="127.0.0.1", log=LogWriter(io.StringIO())).decisions


def test_nothing_is_recorded_that_nobody_could_read():
    assert decisions(Serve()) is None
    assert decisions(Serve(admin=ADMIN, decisions=DecisionSettings(buffer=0))) is None
    assert decisions(Serve(admin=ADMIN)) == DecisionSettings()
    assert decisions(Gateway(admin=ADMIN)) == DecisionSettings()


def test_flags_are_settings():
    path = Path("decisions.jsonl")
    given = {
        "decision_file": path, "decision_file_size": 10, "decision_file_count": 2, "decision_file_prefixes": True,
        "decision_sample_rate": 0.5, "decision_buffer": 7, "decision_buffer_size": 1000,
        "trusted_gateways": "10.0.0.0/8",
    }  # fmt: skip
    defaults = {name: each.default for name, each in parameters(Serve).parameters.items()}
    assert decisions(filled(Serve, defaults | given)) == DecisionSettings(
        sample_rate=0.5, asked_by_header=True, buffer=7, buffer_bytes=1000, file=path, file_bytes=10, file_count=2,
        prefixes=True,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("given", "admin", "problem"),
    [
        ({"prefixes": True}, ADMIN, "-file-prefixes has no effect without --decision-file"),
        ({"sample_rate": 1.0}, AdminSettings(), "-sample-rate has no effect without --admin-port, .*: add"),
        ({"sample_rate": 1.0, "buffer": 0}, ADMIN, "-sample-rate has no effect without --admin-port, .*: add"),
    ],
    ids=["prefixes without a file", "no port", "no buffer"],
)
def test_flag_without_effect_is_refused_with_the_remedy(given, admin, problem):
    with pytest.raises(ConfigurationError, match=f"^--decision{problem}"):
        decisions(Serve(decisions=DecisionSettings(**given), admin=admin))
