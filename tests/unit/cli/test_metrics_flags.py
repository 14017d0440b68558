# SPDX-License-Identifier: Apache-2.0
"""Who may read metrics, by the flags."""

import io
from pathlib import Path

import pytest

from epp.cli.picker_flags import Serve
from epp.cli.settings import picker_settings
from epp.extproc.server import ServerSettings
from epp.telemetry.logs import LogWriter

ON, OFF = True, False
PODS = {"endpoint_selector": "app=vllm", "endpoint_target_ports": "8000"}
LISTED = {"endpoints": ["a=127.0.0.1:1"]}


def asks_cluster(**flags) -> bool:
    server = ServerSettings("127.0.0.1:0", secure=False)
    return picker_settings(Serve(**flags), server, host="127.0.0.1", log=LogWriter(io.StringIO())).metrics_endpoint_auth


@pytest.mark.parametrize(
    ("flags", "asked"),
    [
        ({"pool_name": "pool"}, True),
        (PODS, True),
        ({"pool_name": "pool", "metrics_endpoint_auth": OFF}, False),
        ({"pool_name": "pool", "metrics_token_file": Path("token")}, False),
        ({"pool_name": "pool", "metrics_port": None}, False),
        (LISTED, False),
        ({**LISTED, "pool_name": "only-a-label"}, False),
        ({**LISTED, "metrics_endpoint_auth": ON}, True),
    ],
)
def test_cluster_is_asked_where_it_has_the_pool_or_where_that_is_wanted(flags, asked):
    assert asks_cluster(**flags) is asked
