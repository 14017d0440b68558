# SPDX-License-Identifier: Apache-2.0
"""Roles that get data about endpoints in the background: discovery, data sources, extractors, taggers."""

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

import msgspec

from epp.framework.endpoint import Endpoint
from epp.framework.plugin import P, Plugin, Role
from epp.framework.snapshot import Attribute, Column


class Report(msgspec.Struct, frozen=True):
    """Content of one page of an endpoint; missing values stay unchanged.

    A report is immutable: an extractor may return the same report again.
    """

    columns: Mapping[Column, float] = msgspec.field(default_factory=dict)
    """Values by column; new columns are added to all following snapshots."""
    attributes: Mapping[Attribute[Any], object] = msgspec.field(default_factory=dict)
    problems: tuple[str, ...] = ()
    """Messages about impossible values of the page, which are treated as unknown."""
    uid: str = ""
    """UID of the endpoint's pod. A changed UID means a new pod: everything learned is dropped."""
    boot_id: str = ""
    """Boot ID of the endpoint's node. A changed boot ID means a new start: everything learned is dropped."""


class Pool(Protocol):
    """Receiver of the endpoints that discovery finds."""

    def replace(self, endpoints: Iterable[Endpoint]) -> object:
        """Replace the endpoints of the pool; remaining endpoints keep their data."""

    def update(self, changed: Iterable[Endpoint], removed: Iterable[str] = ()) -> object:
        """Remove the endpoints with the ids in `removed`, then add or replace the endpoints in `changed`.

        An endpoint whose id is in both starts without data; unknown ids in `removed` are ignored. If two endpoints in
        `changed` have the same id, raises ValueError and leaves the pool unchanged.
        """


@dataclass(frozen=True, slots=True)
class Unresolved:
    """An endpoint that is not in the pool because its host name does not resolve."""

    id: str
    host: str
    reason: str
    tls: bool = False


class Discovery(Plugin[P], role=Role(title="Discovery")):
    """Finds the endpoints of a pool, and follows their changes."""

    @property
    def unresolved(self) -> Sequence[Unresolved]:
        """Endpoints that are not in the pool because their host names do not resolve."""
        return ()

    @property
    def trouble(self) -> str:
        """Reason that endpoints may be out of date, with the remedy; empty if they are up to date. Thread-safe."""
        return next(map(str, self.inputs.problems), "")

    @abstractmethod
    async def start(self, pool: Pool) -> None:
        """Fill the pool once; raises ConfigurationError if the source cannot be read."""

    @abstractmethod
    async def follow(self, pool: Pool) -> None:
        """Update the pool until cancelled; while the source cannot be read, the pool stays unchanged."""


class EndpointSource(NamedTuple):
    """A source of endpoints of a pool."""

    plugin: Discovery[Any]
    name: str
    """Unique among the sources."""
    precedence: int = 0
    """Precedence among sources with an endpoint of the same address or id: the highest, or else the first source."""


class Contact(StrEnum):
    """Result of the last attempts to poll an endpoint."""

    NOT_ASKED = "not asked yet"
    ANSWERS = "answers"
    READ_IN_PART = "answers with a page that is read in part"
    NO_PAGE = "answers without a page that can be read"
    REFUSED = "refuses connections"
    EJECTED = "ejected, as requests failed"
    FAILING = "answers polls, and fails requests"
    SILENT = "does not answer"
    SPEAKS_TLS = "speaks TLS, asked in plaintext"
    SPEAKS_PLAINTEXT = "speaks plaintext, asked over TLS"
    NOT_TRUSTED = "certificate not trusted"
    TLS_UNAVAILABLE = "speaks TLS, the gateway was started without"
    UNRESOLVED = "host name does not resolve"


class UnreachableError(Exception):
    """The endpoint cannot be used: it refused the connection, did not answer in time, or speaks another protocol."""

    def __init__(self, message: str, *, refused: bool, contact: Contact | None = None, remedy: str = "") -> None:
        super().__init__(message)
        self.refused = refused
        """Whether the endpoint cannot serve any request; otherwise it has only not answered yet."""
        self.contact = contact or (Contact.REFUSED if refused else Contact.SILENT)
        self.remedy = remedy


class PageError(Exception):
    """The endpoint answered with an unreadable page."""

    def __init__(self, message: str = "", *, remedy: str = "") -> None:
        super().__init__(message)
        self.remedy = remedy


class NotAskedError(Exception):
    """The picker could not poll the endpoint for a reason of its own, such as a lack of file descriptors."""


class DataSource(Plugin[P], role=Role(title="Data sources")):
    """Fetches one page from an endpoint."""

    @property
    def interval_seconds(self) -> float | None:
        """Interval of polls of one endpoint; None for the default of the collector."""
        return None

    @property
    def port(self) -> int | None:
        """Port of the page; None for that of the endpoint."""
        return None

    def asks(self, endpoint: Endpoint) -> bool:
        """Return whether the endpoint itself serves the page, not another server that can fail independently."""
        return self.port is None or self.port == endpoint.port

    @abstractmethod
    async def fetch(self, endpoint: Endpoint) -> bytes:
        """Return the page; raises UnreachableError, PageError or NotAskedError."""

    @abstractmethod
    async def close(self) -> None:
        """Close all connections."""


class Extractor(Plugin[P], role=Role(title="Extractors")):
    """Reads a page into columns and attributes; does no I/O."""

    @property
    def series(self) -> Collection[str] | None:
        """Names of the series that are read from a page in the Prometheus text format; None for whole pages.

        With names, `extract` gets only the lines of these series of a large page, up to the limits of pages.
        """
        return None

    @property
    def newest(self) -> Collection[str]:
        """Names in `series` for which `extract` gets only the series with the greatest value of a large page."""
        return ()

    @abstractmethod
    def extract(self, page: bytes, endpoint: Endpoint) -> Report:
        """Return the content of the page; raises PageError if this extractor can use nothing of it."""


@runtime_checkable
class TrustsMetrics(Protocol):
    """A plugin that ignores metrics from a certain age on; endpoints are polled more often than that."""

    @property
    def oldest_metrics_seconds(self) -> float:
        """Maximum age of usable metrics."""


class Tagger(Plugin[P], role=Role(title="Taggers")):
    """Turns the discovered properties of an endpoint into columns and attributes; does no I/O."""

    @abstractmethod
    def tag(self, endpoint: Endpoint) -> Report:
        """Return the data in the endpoint's labels; called when it joins the pool and when labels change."""

    def untag(self, endpoint: Endpoint) -> None:
        """Forget an endpoint that left the pool."""

    def tag_made_up(self, endpoint: Endpoint) -> Report:
        """Return the result of `tag` for a simulated endpoint, without recording or logging anything."""
        return self.tag(endpoint)


class KnowsAccelerators(Tagger[P]):
    """A tagger that has the names of accelerator classes and products."""

    refuses_unknown: bool = False
    """Whether a configuration with an unknown accelerator is refused; otherwise there is a warning."""

    @abstractmethod
    def knows(self, name: str) -> bool:
        """Return whether a class or a product has this name."""

    @property
    def placement_templates(self) -> Collection[str]:
        """Names of the known placement templates."""
        return ()

    @property
    def selectors(self) -> Sequence[str]:
        """Objects that select accelerators, which only plugins that make selections use."""
        return ()


@runtime_checkable
class NamesPlacementTemplate(Protocol):
    """A plugin that uses a placement template."""

    @property
    def placement_template(self) -> str:
        """Name of the template; empty for the template of each endpoint's pool."""


def unknown_accelerators(plugin: Plugin[Any], sources: Sequence[KnowsAccelerators[Any]]) -> tuple[str, ...]:
    """Return the accelerators in the parameters of the plugin that are unknown to all sources; none without sources."""
    names = dict.fromkeys(plugin.accelerator_names) if sources else ()
    return tuple(name for name in names if not any(source.knows(name) for source in sources))


AffectedEndpoints: TypeAlias = Callable[[Endpoint], bool]
"""Function that returns whether the tag of an endpoint may have changed."""


def no_endpoint(_endpoint: Endpoint) -> bool:
    """Return False: no tag has changed."""
    return False


def every_endpoint(_endpoint: Endpoint) -> bool:
    """Return True: any tag may have changed."""
    return True


class Follower(Plugin[P], role=Role(title="Followers of files and services")):
    """Follows its own files, or keeps connections to a service, while it runs."""

    @abstractmethod
    async def follow(self, changed: Callable[[AffectedEndpoints], None]) -> None:
        """Apply new versions, or keep connections, until cancelled.

        A follower that is also a tagger calls `changed` with the endpoints that must be tagged again. Other followers
        have no reason to call it.
        """


class EndpointNotifications(Plugin[P], role=Role(title="Notifications")):
    """Represents added and removed endpoints as a data source, whose extractors are taggers."""


@dataclass(frozen=True, slots=True)
class Feed:
    """A data source, which is polled for every endpoint, and the extractors of its pages."""

    source: DataSource[Any]
    extractors: tuple[Extractor[Any], ...]

    def asks(self, endpoint: Endpoint) -> bool:
        return self.source.asks(endpoint)
