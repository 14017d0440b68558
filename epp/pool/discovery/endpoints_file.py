# SPDX-License-Identifier: Apache-2.0
"""Endpoints listed in a YAML or JSON file, in our own format or Envoy's, which may be replaced at any time."""

import asyncio
import reprlib
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

import msgspec
import structlog

from epp.framework.accelerators.tag import AcceleratorDeclaration
from epp.framework.clock import Clock
from epp.framework.datalayer import Discovery, Pool, Unresolved
from epp.framework.endpoint import Endpoint
from epp.framework.errors import ConfigurationError
from epp.framework.input_errors import ParameterError, read_struct
from epp.framework.plain_yaml import load
from epp.framework.plugin import Parameters, Stability
from epp.framework.plugin_status import IgnoredValue, InputState
from epp.hardware.mig import profile_fault
from epp.pool.discovery.envoy_endpoints import KIND, is_of_envoy, read_assignments
from epp.pool.discovery.targets import Lookup, Resolver, Target, system_lookup
from epp.runtime.addresses import HostPort, is_ip, parse_host, parse_port
from epp.runtime.followed_files import LastGoodFile, ParsedFile, changes

MAX_BYTES = 1024 * 1024
_MAX_DEPTH = 16
_ANY_ADDRESS = "192.0.2.1"
"""An address for documentation, RFC 5737."""
_METRICS_LABELS = ("metricsAddress", "metricsPort")
_log = structlog.get_logger()


class _Entry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    address: str
    port: Any
    namespace: str = "default"
    scheme: Literal["http", "https"] = "http"
    labels: dict[str, str] = {}
    node: str = ""
    cluster: str = ""
    accelerator: AcceleratorDeclaration | None = None


_FIELDS = ", ".join(_Entry.__struct_fields__)


class _BadEntryError(ValueError):
    """An invalid field, or an invalid entry as a whole."""

    def __init__(self, problem: str, field: str = "") -> None:
        super().__init__(f"{field}: {problem}" if field and not problem.startswith(f"{field} ") else problem)
        self.field = field.partition(".")[0]


def parse_targets_file(content: bytes, _path: Path, *, of_clusters: bool = False) -> ParsedFile[tuple[Target, ...]]:
    """Return the endpoints in the content of a file; raises ValueError with the position in the file.

    With `of_clusters`, labels have the addresses of the metrics pages.
    """
    document = load(content.decode("utf-8-sig"), _MAX_DEPTH)
    data = document.data
    if isinstance(data, dict) and is_of_envoy(data):
        found, remarks = read_assignments(data)
        if of_clusters:
            found = [replace(target, metrics=_metrics_page(target)) for target in found]
        return ParsedFile(tuple(found), len(found), remarks=remarks)
    if not isinstance(data, dict) or "endpoints" not in data:
        raise ValueError("no list 'endpoints': for an empty pool write 'endpoints: []'")
    if unknown := next((key for key in data if key != "endpoints"), None):
        raise ValueError(f"unknown field {unknown!r}: the only field is 'endpoints'")
    entries = data["endpoints"]
    if not isinstance(entries, list):
        raise ValueError("'endpoints' is not a list: for an empty pool write 'endpoints: []'")  # noqa: TRY004  of a file
    targets: list[Target] = []
    first_use: dict[object, int] = {}
    for index, entry in enumerate(entries):
        try:
            target = _read_entry(entry)
            if of_clusters:
                target = replace(target, metrics=_metrics_page(target))
            _check_unique(target, index, first_use)
        except _BadEntryError as error:
            name = entry.get("name") if isinstance(entry, dict) else None
            entry_name = f" {reprlib.repr(name)}" if name else ""
            line = document.line("endpoints", index, error.field)
            raise ValueError(f"endpoints[{index}]{entry_name} (line {line}): {error}") from None
        targets.append(target)
    return ParsedFile(tuple(targets), len(targets))


def _read_entry(entry: object) -> Target:
    if not isinstance(entry, dict):
        raise _BadEntryError(f"not a mapping: write the fields {_FIELDS}")
    try:
        read = read_struct(_Entry, {key: value for key, value in entry.items() if value not in (None, "")})
    except ParameterError as error:
        raise _BadEntryError(str(error), ".".join(map(str, error.path))) from None
    field = "address"
    try:
        host = parse_host(read.address)
        field = "port"
        port = parse_port(read.port)
    except ValueError as error:
        raise _BadEntryError(str(error), field) from None
    hardware = read.accelerator
    if hardware and hardware.profile and (fault := profile_fault(hardware.profile, hardware.accelerator_class)):
        raise _BadEntryError(f"profile {fault}", "accelerator")
    return Target(
        read.name,
        host,
        port,
        read.namespace,
        read.labels,
        read.node,
        read.cluster,
        hardware,
        tls=read.scheme == "https",
    )


def _metrics_page(target: Target) -> HostPort | None:
    """Return the address of the metrics page in the labels; None for the address of the endpoint."""
    address, port = (target.labels.get(name, "") for name in _METRICS_LABELS)
    try:
        if address or port:
            return HostPort(parse_host(address or target.host), parse_port(port or target.port))
    except ValueError as error:
        raise _BadEntryError(f"{' or '.join(_METRICS_LABELS)}: {error}", "labels") from None
    return None


def _check_unique(target: Target, index: int, first_use: dict[object, int]) -> None:
    for key, field, what in (
        ((target.namespace, target.name), "name", f"{target.name!r} in namespace {target.namespace!r}"),
        ((target.host.lower(), target.port), "address", f"{target.host!r} with port {target.port}"),
    ):
        first = first_use.setdefault((field, key), index)
        if first != index:
            raise _BadEntryError(f"{what} repeats endpoints[{first}]: leave one out", field)


_Endpoints = LastGoodFile[tuple[Target, ...]]


class FileDiscoveryParameters(Parameters, frozen=True):
    """Path of the file, and whether to follow its changes."""

    path: str
    """A YAML or JSON file: `endpoints`, a list of `name`, `address`, `port`, and optionally `scheme` (`http` or
    `https`), `namespace`, `labels`, `node`, `cluster` and `accelerator`. Or a file for Envoy's EDS: a
    ClusterLoadAssignment, or a DiscoveryResponse that contains some. Unhealthy and draining endpoints are left out;
    region and zone of the locality, and the metadata `envoy.lb`, become labels; weights and priorities have no
    effect."""
    watch_file: bool = False
    """Apply each new version of the file within a second."""

    def __post_init__(self) -> None:
        if not self.path:
            raise ValueError("path is empty: write the path of the file with the endpoints")


class FileDiscovery(Discovery[FileDiscoveryParameters]):
    """A pool listed in a file. An invalid new version has no effect; the log, `/healthz` and metrics have the reason.

    To replace the file, rename a new file over it, or swap a symbolic link in its path. A version that may be
    incomplete, because it is written in place or has less than half of the endpoints, is applied when it has not
    changed for 1.5 s.
    """

    plugin_type = "file-discovery"
    of_clusters: ClassVar[bool] = False
    """Whether labels have the addresses of the metrics pages."""

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
        self._parse = partial(parse_targets_file, of_clusters=self.of_clusters)
        self._file: _Endpoints | None = None

    @property
    def unresolved(self) -> Sequence[Unresolved]:
        return self.resolver.unresolved

    @property
    def inputs(self) -> InputState:
        """The file, if its newest version is not in effect, and its unknown fields."""
        if self._file is None:
            return InputState()
        remarks = () if self._file.parsed is None else self._file.parsed.remarks
        ignored = tuple(IgnoredValue(self._path, KIND, *remark.split(": ", 1)) for remark in remarks)
        return InputState(self._file.problems, {self._path: self._file.rejected}, ignored)

    def listed(self) -> Sequence[Endpoint]:
        """Return the endpoints in the file without resolving host names; raises ConfigurationError."""
        self._file = self._read()
        targets = () if self._file.parsed is None else self._file.parsed.value
        return [target.endpoint(target.host if is_ip(target.host) else _ANY_ADDRESS) for target in targets]

    async def start(self, pool: Pool) -> None:
        """Fill the pool; raises ConfigurationError for an invalid file. Hosts that do not resolve are left out."""
        self._file = await asyncio.to_thread(self._read)
        self._take(self._file)
        if not await self.resolver.refresh(pool) and self.resolver.targets:
            _log.warning("the pool is empty: none of the endpoints' host names resolves", file=self._path)

    async def follow(self, pool: Pool) -> None:
        """Apply new versions of a watched file, and new addresses of host names, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.resolver.follow(pool))
            if self.parameters.watch_file:
                async for _ in changes():
                    await self.reread(pool)

    async def reread(self, pool: Pool) -> None:
        """Apply the file if its content has changed; a problem is logged, once."""
        if self._file is None:
            return
        before = self._file
        self._file = file = await asyncio.to_thread(before.after, self.clock.now())
        if file is before:
            return
        if file.parsed is not before.parsed:
            self._take(file)
            _log.info("endpoints file applied", file=self._path, endpoints=await self.resolver.refresh(pool))
        for problem in file.problems:
            state = "may be incomplete" if file.waiting is not None else "rejected"
            _log.warning(f"endpoints file {state}, pool unchanged", reason=str(problem))

    def _take(self, file: _Endpoints) -> None:
        self.resolver.targets = () if file.parsed is None else file.parsed.value
        for value in self.inputs.ignored:
            _log.warning("part of the endpoints file has no effect", reason=str(value))

    def _read(self) -> _Endpoints:
        """Read the file for the first time; raises ConfigurationError. An unwatched file may be a pipe."""
        path = Path(self._path)
        file: _Endpoints = LastGoodFile(path, "path", self._parse, MAX_BYTES)
        if self.parameters.watch_file or not path.is_fifo():
            file = file.after(self.clock.now())
            if file.parsed is None:
                raise ConfigurationError(f"endpoints file {path}: {file.problems[0].reason}")
            return file
        try:
            return msgspec.structs.replace(file, parsed=self._parse(path.read_bytes(), path))
        except (OSError, ValueError) as error:
            raise ConfigurationError(f"endpoints file {path}: {error}") from error


class MultiClusterFileDiscovery(FileDiscovery):
    """Clusters listed in a file as for `file-discovery`; each endpoint is the gateway of a cluster.

    Addresses may be host names, which are resolved again every 30 s, since gateways get IP addresses. The labels
    `metricsAddress` and `metricsPort` have the address and port of the metrics page of the cluster's router, for
    `multicluster-metrics-data-source`; by default, they are those of the endpoint.
    """

    plugin_type = "multicluster-file-discovery"
    stability = Stability.ALPHA
    of_clusters = True
