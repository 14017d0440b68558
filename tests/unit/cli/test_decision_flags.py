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
    flags = filled(
        Serve,
        {name: each.default for name, each in parameters(Serve).parameters.items()}
        | {
            "decision_file": path,
            "decision_file_size": 10,
            "decision_file_count": 2,
            "decision_file_prefixes": True,
            "decision_sample_rate": 0.5,
            "decision_buffer": 7,
            "decision_buffer_size": 1000,
            "trusted_gateways": "10.0.0.0/8",
        },
    )
    assert decisions(flags) == DecisionSettings(
        sample_rate=0.5,
        asked_by_header=True,
        buffer=7,
        buffer_bytes=1000,
        file=path,
        file_bytes=10,
        file_count=2,
        prefixes=True,
    )


def test_prefixes_without_a_file_are_refused():
    with pytest.raises(ConfigurationError, match=r"^--decision-file-prefixes has no effect without --decision-file"):
        decisions(Serve(decisions=DecisionSettings(prefixes=True), admin=ADMIN))


@pytest.mark.parametrize(
    "flags",
    [
        Serve(decisions=DecisionSettings(sample_rate=1.0)),
        Serve(decisions=DecisionSettings(sample_rate=1.0, buffer=0), admin=ADMIN),
    ],
)
def test_sample_that_nobody_could_read_is_refused_with_the_remedy(flags):
    with pytest.raises(
        ConfigurationError, match=r"^--decision-sample-rate has no effect without --admin-port, .*: add"
    ):
        decisions(flags)
