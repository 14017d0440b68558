# SPDX-License-Identifier: Apache-2.0
"""Endpoints listed in a file, which may be replaced at any time."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import structlog

from epp.discovery.endpoints_file import read_content, read_targets
from epp.discovery.targets import Lookup, Resolver, system_lookup
from epp.framework.clock import Clock
from epp.framework.datalayer import Discovery, Pool, Unresolved
from epp.framework.endpoint import Endpoint
from epp.framework.errors import ConfigurationError
from epp.framework.plugin import Parameters
from epp.host_port import is_ip
from epp.watch import changes

_ANY_ADDRESS = "192.0.2.1"
"""Of documentation, RFC 5737."""

_log = structlog.get_logger()


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
    """A pool listed in a file; an invalid new version changes nothing and is logged once.

    Replace the file by renaming a new one over it, or by swapping a symbolic link in its path.
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
        self._content: bytes | None = None
        self._read_error = ""

    @property
    def unresolved(self) -> Sequence[Unresolved]:
        """Endpoints without an address."""
        return self.resolver.unresolved

    def listed(self) -> Sequence[Endpoint]:
        """Return the endpoints in the file without resolving host names; raises ConfigurationError."""
        targets = read_targets(read_content(self._path), self._path)
        return [target.endpoint(target.host if is_ip(target.host) else _ANY_ADDRESS) for target in targets]

    async def start(self, pool: Pool) -> None:
        """Fill the pool; raises ConfigurationError for an invalid file. Hosts that do not resolve yet are left out."""
        content = await asyncio.to_thread(read_content, self._path)
        self.resolver.targets = await asyncio.to_thread(read_targets, content, self._path)
        self._content = content
        if not await self.resolver.refresh(pool) and self.resolver.targets:
            _log.warning("none of the endpoints' host names resolves, the pool is empty", file=self._path)

    async def follow(self, pool: Pool) -> None:
        """Apply new versions of the file, where it is watched, and new addresses of host names, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.resolver.follow(pool))
            if self.parameters.watch_file:
                tasks.create_task(self._follow_file(pool))

    async def reread(self, pool: Pool) -> None:
        """Apply the file if its content has changed; an error is logged, once."""
        try:
            content = await asyncio.to_thread(read_content, self._path)
        except ConfigurationError as error:
            if str(error) != self._read_error:
                self._read_error = str(error)
                _log.warning("endpoints file not readable, pool unchanged", reason=str(error))
            return
        self._read_error = ""
        if content == self._content:
            return
        self._content = content
        try:
            self.resolver.targets = await asyncio.to_thread(read_targets, content, self._path)
        except ConfigurationError as error:
            _log.warning("endpoints file rejected, pool unchanged", reason=str(error))
            return
        _log.info("endpoints file applied", file=self._path, endpoints=await self.resolver.refresh(pool))

    async def _follow_file(self, pool: Pool) -> None:
        async for _ in changes(Path(self._path)):
            await self.reread(pool)
