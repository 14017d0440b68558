# SPDX-License-Identifier: Apache-2.0
"""Who may read metrics, by the flags."""

import io
from pathlib import Path

import pytest

from epp.cli.picker_flags import Serve
from epp.cli.serve import picker_settings
from epp.extproc.settings import ServerSettings
from epp.telemetry.logs import LogWriter
from epp.telemetry.settings import PageSettings

ON, OFF = True, False
PODS = {"endpoint_selector": "app=vllm", "endpoint_target_ports": "8000"}
LISTED = {"endpoints": ["a=127.0.0.1:1"]}


def asks_cluster(*, port: int | None = 9090, token_file=None, endpoint_auth=None, **flags) -> bool | None:
    page = PageSettings(port=port, token_file=token_file, endpoint_auth=endpoint_auth)
    log = LogWriter(io.StringIO())
    return picker_settings(Serve(page=page, **flags), ServerSettings(), host="::1", log=log).page.endpoint_auth


@pytest.mark.parametrize(
    ("flags", "asked"),
    [
        ({"pool_name": "pool"}, True),
        (PODS, True),
        ({"pool_name": "pool", "endpoint_auth": OFF}, False),
        ({"pool_name": "pool", "token_file": Path("token")}, False),
        ({"pool_name": "pool", "port": None}, False),
        (LISTED, False),
        ({**LISTED, "pool_name": "only-a-label"}, False),
        ({**LISTED, "endpoint_auth": ON}, True),
    ],
)
def test_cluster_is_asked_where_it_has_the_pool_or_where_that_is_wanted(flags, asked):
    assert asks_cluster(**flags) is asked
