"""Endpoints listed in a file, which may be replaced at any time."""

import asyncio
from pathlib import Path

import structlog

from epp.discovery.endpoints_file import read_content, read_targets
from epp.discovery.resolve import AddressBook, Lookup, system_lookup
from epp.discovery.target import Target
from epp.framework.clock import Clock
from epp.framework.datalayer import Discovery, Pool
from epp.framework.errors import ConfigurationError
from epp.framework.plugin import Parameters
from epp.watch import changes

_LOOK_AGAIN_SECONDS = 5.0

_log = structlog.get_logger()


class FileDiscoveryParameters(Parameters, frozen=True):
    """Which file, and whether to follow it."""

    path: str
    """A YAML or JSON file: `endpoints`, a list of `name`, `address`, `port`, and if need be `namespace`, `labels`,
    `node`, `cluster` and `accelerator`."""
    watch_file: bool = False
    """Take over a new version of the file as soon as it is there."""

    def __post_init__(self) -> None:
        """Check the path; raises ValueError."""
        if not self.path:
            raise ValueError("path is empty: write the path of the file with the endpoints")


class FileDiscovery(Discovery[FileDiscoveryParameters]):
    """A pool as a file has it; a new version that is bad changes nothing and is logged once.

    Replace the file by renaming a new one over it, or by swapping a symbolic link on the way to it.
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
        self._path = parameters.path
        self._book = AddressBook(lookup)
        self._targets: tuple[Target, ...] = ()
        self._seen: bytes | None = None
        self._unreadable = ""
        self._publishing = asyncio.Lock()

    async def start(self, pool: Pool) -> None:
        """Fill the pool; raises ConfigurationError for a bad file. Hosts that do not resolve yet are left out."""
        content = await asyncio.to_thread(read_content, self._path)
        self._targets = await asyncio.to_thread(read_targets, content, self._path)
        self._seen = content
        count = await self.refresh(pool)
        if self._targets and not count:
            _log.warning("none of the endpoints' host names resolves, the pool is empty", file=self._path)

    async def follow(self, pool: Pool) -> None:
        """Take over new versions of the file, if told to, and new addresses of host names, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow_names(pool))
            if self.parameters.watch_file:
                tasks.create_task(self._follow_file(pool))

    async def refresh(self, pool: Pool) -> int:
        """Resolve host names and fill the pool; return how many endpoints it has."""
        async with self._publishing:
            endpoints = await self._book.resolve(self._targets)
            pool.replace(endpoints)
            return len(endpoints)

    async def reread(self, pool: Pool) -> None:
        """Take over the file if it is another one than before; what is wrong with it is logged, once."""
        try:
            content = await asyncio.to_thread(read_content, self._path)
        except ConfigurationError as error:
            if str(error) != self._unreadable:
                self._unreadable = str(error)
                _log.warning("endpoints file not read, the pool stays as it is", reason=str(error))
            return
        self._unreadable = ""
        if content == self._seen:
            return
        self._seen = content
        try:
            self._targets = await asyncio.to_thread(read_targets, content, self._path)
        except ConfigurationError as error:
            _log.warning("endpoints file refused, the pool stays as it is", reason=str(error))
            return
        count = await self.refresh(pool)
        _log.info("endpoints file taken over", file=self._path, endpoints=count)

    async def _follow_names(self, pool: Pool) -> None:
        while True:
            await asyncio.sleep(self._book.seconds_to_next(self._targets) or _LOOK_AGAIN_SECONDS)
            if self._book.seconds_to_next(self._targets) is not None:
                await self.refresh(pool)

    async def _follow_file(self, pool: Pool) -> None:
        async for _ in changes(Path(self._path)):
            await self.reread(pool)
