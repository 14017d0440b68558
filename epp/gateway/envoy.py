"""One real Envoy as a child process: started, ready by its own word, watched, and never left behind."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import tempfile
from collections import deque
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec
import structlog

from epp.child import tied_to_parent
from epp.gateway.admin import EnvoyAdmin
from epp.gateway.binary import find_envoy
from epp.gateway.bootstrap import bootstrap_json
from epp.gateway.errors import EnvoyDiedError, EnvoyStartError, ListenAddressError, PortTakenError
from epp.gateway.settings import ENDPOINT_PICKER, LISTENER, GatewaySettings, TcpAddress, parse_address

__all__ = ["EnvoyProcess", "check_listen_address"]

_POLL_SECONDS = 0.02
_STDERR_LINES = 30

logger = structlog.get_logger()


class EnvoyProcess:
    """A running Envoy. Made by `start`; ends with `stop`, with the `async with` block, or with this process.

        async with await EnvoyProcess.start(settings) as envoy:
            print(envoy.address)
            await envoy.wait()

    It has its own session, so that Ctrl-C reaches only this program, which then stops Envoy in its own order.
    It dies with the thread that started it (that is how the kernel ties processes), so start it from a thread
    that lives as long as the program, such as the main one.
    """

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        directory: tempfile.TemporaryDirectory[str],
        *,
        address: TcpAddress,
        stop_seconds: float,
    ) -> None:
        self._process = process
        self._directory = directory
        self._address = address
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
        """Start Envoy and return when it is ready, and with `wait_for_picker` when the picker is healthy to it.

        Envoy by itself is ready after one health check of the picker, passed or not, and answers 503 until one is
        passed. `stop_seconds` is what `stop` later grants it between SIGTERM and SIGKILL. Raises `PortTakenError` or
        `ListenAddressError` before anything is started, `PackageMissingError`, and `EnvoyStartError` with Envoy's own
        words when it refuses its configuration or is not ready after `ready_seconds`.
        """
        binary = find_envoy()
        directory = tempfile.TemporaryDirectory(prefix="epp-envoy-")
        try:
            if settings.admin_address is None:
                settings = msgspec.structs.replace(settings, admin_address=f"unix:{directory.name}/admin.sock")
            process = await _spawn(binary, settings, Path(directory.name))
        except BaseException:
            directory.cleanup()
            raise
        envoy = cls(process, directory, address=settings.listen, stop_seconds=stop_seconds)
        try:
            await envoy._become_ready(settings, ready_seconds, wait_for_picker=wait_for_picker)
        except BaseException:
            await envoy.stop()
            raise
        logger.info("envoy_ready", address=str(envoy.address), pid=envoy.pid)
        return envoy

    @property
    def address(self) -> TcpAddress:
        """Where clients connect, with the real port when port 0 was asked for."""
        return self._address

    @property
    def pid(self) -> int:
        """The process id of Envoy itself."""
        return self._process.pid

    async def wait(self) -> None:
        """Return after `stop`; raise `EnvoyDiedError` as soon as Envoy has ended by itself."""
        exit_code = await self._process.wait()
        await asyncio.wait({self._stderr_reader})
        if not self._stopping:
            raise EnvoyDiedError(exit_code, self._last_words())

    async def stop(self) -> None:
        """End Envoy, which cuts the requests still in it, and remove its files. May be called again."""
        self._stopping = True
        try:
            await self._end_process()
        finally:
            self._directory.cleanup()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.stop()

    async def _become_ready(self, settings: GatewaySettings, ready_seconds: float, *, wait_for_picker: bool) -> None:
        admin_address = parse_address(settings.admin_address or "", setting="admin_address")
        missing = "not ready"
        try:
            async with asyncio.timeout(ready_seconds), EnvoyAdmin(admin_address) as admin:
                while (address := await admin.ready_listener(LISTENER)) is None:
                    await self._raise_if_ended()
                    await asyncio.sleep(_POLL_SECONDS)
                self._address = address
                missing = f"no healthy picker at {settings.picker_address}"
                while wait_for_picker and not await admin.has_healthy_host(ENDPOINT_PICKER):
                    await self._raise_if_ended()
                    await asyncio.sleep(_POLL_SECONDS)
        except TimeoutError:
            raise EnvoyStartError(f"{missing} after {ready_seconds:g} s", self._last_words()) from None

    async def _raise_if_ended(self) -> None:
        if self._process.returncode is not None:
            await asyncio.wait({self._stderr_reader})
            raise EnvoyStartError(f"exit code {self._process.returncode}", self._last_words())

    async def _end_process(self) -> None:
        try:
            with contextlib.suppress(ProcessLookupError):
                self._process.terminate()
            async with asyncio.timeout(self._stop_seconds):
                await self._process.wait()
        except TimeoutError:
            logger.warning("envoy_killed", pid=self.pid, waited_seconds=self._stop_seconds)
        finally:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
        await self._process.wait()
        await asyncio.wait({self._stderr_reader})

    async def _read_stderr(self) -> None:
        stream = self._process.stderr
        while stream is not None and (raw := await stream.readline()):
            line = raw.decode(errors="replace").rstrip()
            self._stderr.append(line)
            if not self._stopping:
                logger.warning("envoy_says", line=line)

    def _last_words(self) -> str:
        return "\n".join(self._stderr)


def check_listen_address(address: TcpAddress) -> None:
    """Raise `PortTakenError`, or `ListenAddressError` for any other reason, if `address` cannot be bound now.

    Envoy itself would not notice: it shares a taken port with whoever else allows sharing (SO_REUSEPORT).
    """
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # As every server does: connections of the previous one that still linger are no obstacle.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address.host, address.port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise PortTakenError(str(address)) from error
            raise ListenAddressError(
                f"cannot listen on {address}: {error.strerror}; choose an address of this machine and a port above 1023"
            ) from error


async def _spawn(binary: Path, settings: GatewaySettings, directory: Path) -> asyncio.subprocess.Process:
    check_listen_address(settings.listen)
    admin = parse_address(settings.admin_address or "", setting="admin_address")
    if isinstance(admin, TcpAddress):
        check_listen_address(admin)
    config = directory / "envoy.json"
    config.write_text(bootstrap_json(settings))
    return await asyncio.create_subprocess_exec(
        *tied_to_parent(
            str(binary),
            "--config-path",
            str(config),
            "--concurrency",
            str(settings.concurrency),
            # Hot restart is what makes two Envoys on one machine get in each other's way.
            "--disable-hot-restart",
            "--log-level",
            "warning",
            "--log-format",
            "[%l][%n] %v",
        ),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=None if settings.access_log else asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
