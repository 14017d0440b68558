# SPDX-License-Identifier: Apache-2.0
"""A genuine server, Valkey or Redis: the one that `EPP_TEST_REDIS_SERVER` names, or redis-server."""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence

import pytest
from redis import Redis
from redis.exceptions import ConnectionError as NotConnectedError

from tests.shared_index.install_server import PACKAGES
from tests.support.debian_programs import remedy
from tests.support.ports import reserved_ports
from tests.support.waiting import until


class Server:
    """A server on a port of 127.0.0.1, and a client for its test. `first` are arguments before all options."""

    def __init__(
        self, program: str, folder: str, port: int, *options: str, is_tls: bool = False, first: Sequence[str] = ()
    ) -> None:
        self.program = program
        self.port = port
        self.url = f"redis://127.0.0.1:{port}"
        self.client = Redis(port=port, decode_responses=True)
        ports = ("--port", "0", "--tls-port", str(port)) if is_tls else ("--port", str(port))
        self._command = [program, *first, *ports, "--bind", "127.0.0.1", "--dir", folder, "--save", "", *options]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> "Server":
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL)
        return self

    def is_up(self) -> bool:
        try:
            return bool(self.client.ping())
        except NotConnectedError:
            return False

    def kill(self) -> None:
        self.client.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


@pytest.fixture
def server(tmp_path) -> Iterator[Callable[..., Server]]:
    """Return a coroutine function that starts a server; without one, skip, and fail where CI is set."""
    program = os.environ.get("EPP_TEST_REDIS_SERVER") or shutil.which("redis-server")
    if program is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(remedy(["redis-server"], PACKAGES))
    found: list[Server] = []
    with reserved_ports(1) as (port,):

        async def start(*options: str, is_open: bool = True, is_tls: bool = False) -> Server:
            found.append(Server(program, str(tmp_path), port, *options, is_tls=is_tls).start())
            if is_open:
                await until(found[-1].is_up, "the server answers")
            return found[-1]

        yield start
        for each in found:
            each.kill()
