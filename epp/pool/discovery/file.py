# SPDX-License-Identifier: Apache-2.0
"""Endpoints listed in a file, which may be replaced at any time."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import msgspec
import structlog

from epp.framework.clock import Clock
from epp.framework.datalayer import Discovery, Pool, Unresolved
from epp.framework.endpoint import Endpoint
from epp.framework.errors import ConfigurationError
from epp.framework.plugin import Parameters
from epp.framework.plugin_status import InputState
from epp.pool.discovery.endpoints_file import MAX_BYTES, parse_targets_file
from epp.pool.discovery.targets import Lookup, Resolver, Target, system_lookup
from epp.runtime.addresses import is_ip
from epp.runtime.followed_files import LastGoodFile, changes

_ANY_ADDRESS = "192.0.2.1"
"""Of documentation, RFC 5737."""

_log = structlog.get_logger()

_Endpoints = LastGoodFile[tuple[Target, ...]]


class FileDiscoveryParameters(Parameters, frozen=True):
    """The file, and whether to follow it."""

    path: str
    """A YAML or JSON file: `endpoints`, a list of `name`, `address`, `port`, and optionally `scheme` (`http` or
    `https`), `namespace`, `labels`, `node`, `cluster` and `accelerator`."""
    watch_file: bool = False
    """Apply each new version of the file at once."""

    def __post_init__(self) -> None:
        """Check the path; raises ValueError."""
        if not self.path:
            raise ValueError("path is empty: write the path of the file with the endpoints")


class FileDiscovery(Discovery[FileDiscoveryParameters]):
    """A pool listed in a file; an invalid new version changes nothing: the log, `/healthz` and metrics have the reason.

    Replace the file by renaming a new one over it, or by swapping a symbolic link in its path. A version that may be
    half-written, one that is written in place or has less than half of the endpoints, waits until it has not changed
    for 1.5 s.
    """

    plugin_type = "file-discovery"

    def __init__(
        self,
        parameters: FileDiscoveryParameters,
        *,
        name: str = "",
        clock: Clock | None = None,
        lookup: Lookup = system_lookup,
    ) -> None:
        super().__init__(parameters, name=name, clock=clock)
        self.resolver = Resolver(lookup)
        self._path = parameters.path
        self._file: _Endpoints | None = None

    @property
    def unresolved(self) -> Sequence[Unresolved]:
        """Endpoints without an address."""
        return self.resolver.unresolved

    @property
    def inputs(self) -> InputState:
        """The file, if its newest version is not in effect."""
        if self._file is None:
            return InputState()
        return InputState(self._file.problems, {self._path: self._file.rejected})

    def listed(self) -> Sequence[Endpoint]:
        """Return the endpoints in the file without resolving host names; raises ConfigurationError."""
        targets = _targets(self._read())
        return [target.endpoint(target.host if is_ip(target.host) else _ANY_ADDRESS) for target in targets]

    async def start(self, pool: Pool) -> None:
        """Fill the pool; raises ConfigurationError for an invalid file. Hosts that do not resolve yet are left out."""
        self._file = await asyncio.to_thread(self._read)
        self.resolver.targets = _targets(self._file)
        if not await self.resolver.refresh(pool) and self.resolver.targets:
            _log.warning("none of the endpoints' host names resolves, the pool is empty", file=self._path)

    async def follow(self, pool: Pool) -> None:
        """Apply new versions of the file, where it is watched, and new addresses of host names, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.resolver.follow(pool))
            if self.parameters.watch_file:
                tasks.create_task(self._follow_file(pool))

    async def reread(self, pool: Pool) -> None:
        """Apply the file if its content has changed; a problem is logged, once."""
        if self._file is None:
            return
        before = self._file
        self._file = file = await asyncio.to_thread(before.after, self.clock.now())
        if file is before:
            return
        if file.parsed is not before.parsed:
            self.resolver.targets = _targets(file)
            _log.info("endpoints file applied", file=self._path, endpoints=await self.resolver.refresh(pool))
        for problem in file.problems:
            what = "waits for a second look" if file.waiting is not None else "rejected"
            _log.warning(f"endpoints file {what}, pool unchanged", reason=str(problem))

    async def _follow_file(self, pool: Pool) -> None:
        async for _ in changes(Path(self._path)):
            await self.reread(pool)

    def _read(self) -> _Endpoints:
        """Return the file, read for the first time; raises ConfigurationError.

        One that is not watched may be a pipe.
        """
        path = Path(self._path)
        file: _Endpoints = LastGoodFile(path, "path", parse_targets_file, MAX_BYTES)
        if self.parameters.watch_file or not path.is_fifo():
            file = file.after(self.clock.now())
            if file.parsed is None:
                raise ConfigurationError(f"endpoints file {path}: {file.problems[0].reason}")
            return file
        try:
            return msgspec.structs.replace(file, parsed=parse_targets_file(path.read_bytes(), path))
        except (OSError, ValueError) as error:
            raise ConfigurationError(f"endpoints file {path}: {error}") from error


def _targets(file: _Endpoints) -> tuple[Target, ...]:
    return () if file.parsed is None else file.parsed.value
