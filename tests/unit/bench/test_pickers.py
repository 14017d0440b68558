# SPDX-License-Identifier: Apache-2.0
"""Commands of pickers: fields, the flags that are appended, and what is said of those that cannot be run."""

import shlex
import sys

import pytest
from rig.pickers import FIELDS, PickerKind, own, peers
from rig.processes import BenchError

VALUES = {name: f"<{name}>" for name in FIELDS}


def only(text: str) -> PickerKind:
    (found,) = peers([text])
    return found


def test_peer_without_fields_gets_the_flags_of_llm_d_router():
    arguments = only(f"before={sys.executable} serve").arguments(**VALUES)
    assert arguments[:3] == [sys.executable, "serve", "--config-file=<config_file>"]
    assert {"--grpc-port=<grpc_port>", "--secure-serving=false", "--pool-name=bench"} <= set(arguments)


def test_peer_with_fields_is_taken_as_it_is():
    command = f"{shlex.quote(sys.executable)} --port {{grpc_port}} --targets={{endpoints}} 'a b'"
    assert only(command).arguments(**VALUES)[1:] == ["--port", "<grpc_port>", "--targets=<endpoints>", "a b"]


def test_name_of_a_peer_stands_before_its_command():
    names = [kind.name for kind in peers(["go=/usr/bin/epp", "/usr/bin/epp --pool-name=a", "/usr/bin/epp"])]
    assert names == ["go", "peer2", "peer3"]


def test_unknown_field_is_named_with_those_that_there_are():
    with pytest.raises(BenchError, match=r"'port' is none of config_file, .*grpc_port"):
        only(f"{sys.executable} {{port}} {{grpc_port}}").arguments(**VALUES)


def test_missing_program_is_named():
    with pytest.raises(BenchError, match="there is no program '/nowhere/epp'"):
        only("/nowhere/epp").arguments(**VALUES)


def test_parts_of_another_checkout_are_run_by_its_own_python(tmp_path):
    for name in ("epp", "python"):
        (tmp_path / name).touch()
    assert only(f"before={tmp_path}/epp serve").python == f"{tmp_path}/python"
    assert only("go=/usr/bin/env epp").python is None
    assert own("asyncio").python == sys.executable


def test_carrier_of_this_program_is_a_flag():
    assert "--transport=asyncio" in own("asyncio").arguments(**VALUES)
    assert not [flag for flag in own().arguments(**VALUES) if flag.startswith("--transport")]
