# SPDX-License-Identifier: Apache-2.0
"""A picker of several pools, without an API server."""

import socket

import pytest

from epp.app import PickerSettings, PoolChoice, Pools
from epp.extproc.settings import ServerSettings
from epp.framework import ConfigurationError
from epp.telemetry.settings import AdminSettings
from tests.support.kube.kube_server import kubeconfig


async def test_admin_port_that_is_taken_ends_the_start_before_the_cluster_is_read(tmp_path):
    def settings_of(name: str, port: int) -> PickerSettings:
        raise AssertionError(f"pool {name} on port {port} is served")

    choice = PoolChoice(namespace="llm", kubeconfig=kubeconfig(tmp_path / "access", "https://127.0.0.1:1"))
    with socket.create_server(("127.0.0.1", 0)) as other:
        admin = AdminSettings(port=other.getsockname()[1])
        pools = Pools(PickerSettings(server=ServerSettings("127.0.0.1:9002"), admin=admin), choice, settings_of)
        with pytest.raises(ConfigurationError, match=r"^the admin port cannot listen on 127\.0\.0\.1:"):
            await pools.start()
