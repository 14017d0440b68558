# SPDX-License-Identifier: Apache-2.0
"""The life of a real Envoy: it starts, answers, is watched, and is never left behind."""

import asyncio
import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import aiohttp
import grpc
import msgspec
import pytest
from grpc_health.v1.health_pb2 import HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthServicer, add_HealthServicer_to_server

from epp.framework import Endpoint
from epp.framework.headers import DESTINATION, OBEYED_BY_ENDPOINTS
from epp.lab.gateway.envoy import EnvoyProcess
from epp.lab.gateway.local import discovery_response
from epp.lab.gateway.settings import (
    ClusterType,
    EnvoyDiedError,
    EnvoyStartError,
    FailureMode,
    GatewaySettings,
    SettingsError,
)
from epp.runtime.addresses import HostPort

REPOSITORY = Path(__file__).parents[3]

STARTS_AN_ENVOY_FOR_EACH_LINE = """
import asyncio, structlog, sys, uvloop
from epp.lab.gateway.envoy import EnvoyProcess
from epp.lab.gateway.settings import GatewaySettings

structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))

async def main():
    settings = GatewaySettings(listen_port=0, picker_address="unix:/no/picker.sock")
    while True:
        async with await EnvoyProcess.start(settings) as envoy:
            print(envoy.pid, flush=True)
            await asyncio.to_thread(sys.stdin.readline)
        print("stopped", flush=True)

{"asyncio": asyncio, "uvloop": uvloop}[sys.argv[1]].run(main())
"""


@pytest.fixture
def settings():
    return GatewaySettings(listen_port=0, picker_address="unix:/no/picker.sock")


@pytest.fixture
def taken_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture
def directory():
    """Short enough for the path of a unix socket, which `tmp_path` is not always."""
    with tempfile.TemporaryDirectory() as directory:
        yield directory


async def status_of(address: HostPort, **headers: str) -> int:
    async with aiohttp.ClientSession() as session, session.get(f"http://{address}/", headers=headers) as response:
        return response.status


def is_running(pid: int) -> bool:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False


async def test_envoy_without_a_picker_answers_503_and_stops_without_a_trace(settings, directory, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", directory)
    async with await EnvoyProcess.start(settings) as envoy:
        assert envoy.address.port != 0
        assert await status_of(envoy.address) == 503
        assert os.listdir(directory)  # noqa: PTH208 - nothing to iterate over
    await envoy.wait()
    assert not is_running(envoy.pid)
    assert not os.listdir(directory)  # noqa: PTH208 - the same


async def test_client_cannot_choose_servers_while_the_picker_is_down(settings, tmp_path):
    arrived: list[bytes] = []

    async def model_server(reader, writer):
        arrived.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(model_server, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        eds_file = tmp_path / "endpoints.json"
        eds_file.write_bytes(discovery_response([Endpoint("only", host, port)]))
        fail_open = msgspec.structs.replace(
            settings, cluster_type=ClusterType.OVERRIDE_HOST, failure_mode=FailureMode.FAIL_OPEN, eds_file=eds_file
        )
        async with await EnvoyProcess.start(fail_open) as envoy:
            forged = dict.fromkeys((DESTINATION, *OBEYED_BY_ENDPOINTS), f"{host}:{port}")
            status = await status_of(envoy.address, **forged)
    assert status == 200
    (request,) = arrived
    assert not [name for name in forged if name.encode() in request.lower()]


async def test_death_from_outside_is_reported(settings):
    async with await EnvoyProcess.start(settings) as envoy:
        os.kill(envoy.pid, signal.SIGKILL)
        with pytest.raises(EnvoyDiedError, match="signal 9") as caught:
            await envoy.wait()
    assert caught.value.exit_code == -9


async def test_envoy_that_ignores_the_request_to_stop_is_killed(settings):
    envoy = await EnvoyProcess.start(settings, stop_seconds=0.2)
    os.kill(envoy.pid, signal.SIGSTOP)
    await envoy.stop()
    assert not is_running(envoy.pid)


async def test_taken_port_is_named_before_anything_starts(settings, taken_port):
    with pytest.raises(
        SettingsError, match=f"cannot listen on 127.0.0.1:{taken_port}: the address is taken by another"
    ):
        await EnvoyProcess.start(msgspec.structs.replace(settings, listen_port=taken_port))


async def test_address_of_another_machine_is_refused(settings):
    # 192.0.2.0/24 is reserved for documentation; its network address belongs to no host.
    elsewhere = msgspec.structs.replace(settings, listen_host="192.0.2.0")
    with pytest.raises(SettingsError, match=r"on 192\.0\.2\.0:0: this machine does not have the address"):
        await EnvoyProcess.start(elsewhere)


async def test_refused_configuration_comes_with_the_words_of_envoy(settings, directory):
    admin_socket = f"{directory}/missing/admin.sock"
    refused = msgspec.structs.replace(settings, admin_address=f"unix:{admin_socket}")
    with pytest.raises(EnvoyStartError, match="exit code 1") as caught:
        await EnvoyProcess.start(refused)
    assert f"cannot bind '{admin_socket}': No such file or directory" in str(caught.value)


async def test_envoy_that_is_not_ready_in_time_is_not_left_behind(settings, directory, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", directory)
    with pytest.raises(EnvoyStartError, match="not ready after 0 s"):
        await EnvoyProcess.start(settings, ready_seconds=0.0)
    assert not os.listdir(directory)  # noqa: PTH208 - nothing to iterate over


class SlowToBeReady(HealthServicer):
    """The health service of a picker that is not ready for its first two checks."""

    def __init__(self) -> None:
        self.checks = 0

    async def Check(self, request, context):  # noqa: N802  the protocol's name
        self.checks += 1
        is_ready = self.checks > 2
        return HealthCheckResponse(status="SERVING" if is_ready else "NOT_SERVING")


async def test_picker_that_fails_its_first_health_checks_is_waited_for(directory):
    health = SlowToBeReady()
    picker = grpc.aio.server()
    add_HealthServicer_to_server(health, picker)
    picker.add_insecure_port(f"unix:{directory}/picker.sock")
    await picker.start()
    settings = GatewaySettings(listen_port=0, picker_address=f"unix:{directory}/picker.sock")
    try:
        async with await EnvoyProcess.start(settings, wait_for_picker=True):
            assert health.checks > 2
    finally:
        await picker.stop(0)


async def test_picker_that_never_is_healthy_is_named(settings):
    for seconds in (2, 10, 50):  # on a busy machine Envoy itself needs more
        with pytest.raises(EnvoyStartError) as failure:
            await EnvoyProcess.start(settings, wait_for_picker=True, ready_seconds=seconds)
        if "not ready" not in str(failure.value):
            break
    assert f"no healthy picker at unix:/no/picker.sock after {seconds} s" in str(failure.value)


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_envoy_starts_and_stops_and_goes_with_a_killed_parent_on_either_loop(loop, directory):
    with start_parent(loop, directory) as parent:
        stopped = int(parent.stdout.readline())
        parent.stdin.write("\n")
        parent.stdin.flush()
        assert parent.stdout.readline() == "stopped\n"
        assert not is_running(stopped)
        envoy = os.pidfd_open(int(parent.stdout.readline()))
        try:
            parent.kill()
            ended, _, _ = select.select([envoy], [], [], 20)  # readable means ended
            assert ended, "Envoy outlived its parent"
        finally:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(envoy, signal.SIGKILL)
            os.close(envoy)


def start_parent(loop: str, directory: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", STARTS_AN_ENVOY_FOR_EACH_LINE, loop],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=REPOSITORY,
        env={**os.environ, "TMPDIR": directory},
    )
