# SPDX-License-Identifier: Apache-2.0
"""Roles that bring knowledge in from outside, all in the background: discovery, data sources, extractors."""

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
    """Content of one page of an endpoint; values that are absent stay unchanged.

    Immutable: an extractor may return the same report again.
    """

    columns: Mapping[Column, float] = msgspec.field(default_factory=dict)
    """Columns that no snapshot has yet are added to all that follow."""
    attributes: Mapping[Attribute[Any], object] = msgspec.field(default_factory=dict)
    problems: tuple[str, ...] = ()
    """Impossible values of the page; they count as unknown."""
    uid: str = ""
    """UID of the endpoint's pod. A changed UID means a new pod: nothing learned applies to it."""
    boot_id: str = ""
    """Boot ID of the endpoint's node, likewise."""


class Pool(Protocol):
    """Where discovery puts the endpoints it finds."""

    def replace(self, endpoints: Iterable[Endpoint]) -> object:
        """Replace the endpoints of the pool; remaining endpoints keep their data."""

    def update(self, changed: Iterable[Endpoint], removed: Iterable[str] = ()) -> object:
        """Remove the endpoints of the ids `removed`, then add or replace the endpoints in `changed`.

        An endpoint whose id is in both starts without data; unknown ids in `removed` are ignored. Raises
        ValueError, with the pool unchanged, for two endpoints of one id in `changed`.
        """


@dataclass(frozen=True, slots=True)
class Unresolved:
    """An endpoint that is not in the pool, as its host name has no address."""

    id: str
    host: str
    reason: str
    tls: bool = False


class Discovery(Plugin[P], role=Role(title="Discovery")):
    """Finds the endpoints of a pool, and follows their changes."""

    @property
    def unresolved(self) -> Sequence[Unresolved]:
        """Endpoints that are not in the pool because they have no address."""
        return ()

    @property
    def trouble(self) -> str:
        """Why its endpoints may be out of date, with the remedy; empty while they are up to date. For any thread."""
        return next(map(str, self.inputs.problems), "")

    @abstractmethod
    async def start(self, pool: Pool) -> None:
        """Fill the pool once; raises ConfigurationError when its source cannot be read."""

    @abstractmethod
    async def follow(self, pool: Pool) -> None:
        """Update the pool until cancelled; while the source cannot be read, the pool stays unchanged."""


class EndpointSource(NamedTuple):
    """One of the sources of endpoints of a pool."""

    plugin: Discovery[Any]
    name: str
    """Unique among the sources."""
    precedence: int = 0
    """Of two sources with an endpoint of the same address or id, the higher one counts; of equal ones, the first."""


class Contact(StrEnum):
    """How an endpoint took the last attempts to ask it."""

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
        """No request can be answered there, as opposed to no answer yet."""
        self.contact = contact or (Contact.REFUSED if refused else Contact.SILENT)
        self.remedy = remedy


class PageError(Exception):
    """The endpoint answered, but not with a page that can be read."""

    def __init__(self, message: str = "", *, remedy: str = "") -> None:
        super().__init__(message)
        self.remedy = remedy


class NotAskedError(Exception):
    """The picker could not ask, for want of a file descriptor, say: this tells nothing of the endpoint."""


class DataSource(Plugin[P], role=Role(title="Data sources")):
    """Fetches one page from an endpoint."""

    @property
    def interval_seconds(self) -> float | None:
        """Time between two pages of one endpoint; None for the collector's own."""
        return None

    @property
    def port(self) -> int | None:
        """The port asked; None for the endpoint's own."""
        return None

    def asks(self, endpoint: Endpoint) -> bool:
        """Whether the endpoint itself answers, as opposed to something beside it, whose fate is its own."""
        return self.port is None or self.port == endpoint.port

    @abstractmethod
    async def fetch(self, endpoint: Endpoint) -> bytes:
        """Return the page; raises UnreachableError, PageError or NotAskedError."""

    @abstractmethod
    async def close(self) -> None:
        """Give back connections."""


class Extractor(Plugin[P], role=Role(title="Extractors")):
    """Reads a page into columns and attributes; does no I/O."""

    @property
    def series(self) -> Collection[str] | None:
        """Names of the series that are read from a page in the Prometheus text format; None for whole pages.

        With names, only the lines of these series of a large page are passed, up to the limits of pages.
        """
        return None

    @property
    def newest(self) -> Collection[str]:
        """Names in `series` of which only the series with the greatest value counts.

        Only that series of a large page is passed.
        """
        return ()

    @abstractmethod
    def extract(self, page: bytes, endpoint: Endpoint) -> Report:
        """Return the content of the page; raises PageError if this extractor understands none of it."""


@runtime_checkable
class TrustsMetrics(Protocol):
    """A plugin for which metrics of a certain age count for nothing: endpoints are polled accordingly."""

    @property
    def oldest_metrics_seconds(self) -> float:
        """The age up to which metrics count."""


class Tagger(Plugin[P], role=Role(title="Taggers")):
    """Reads what discovery says of an endpoint into columns and attributes; does no I/O."""

    @abstractmethod
    def tag(self, endpoint: Endpoint) -> Report:
        """Return the data in the endpoint's labels; called when it joins the pool and when labels change."""

    def untag(self, endpoint: Endpoint) -> None:
        """Forget an endpoint that left the pool."""

    def tag_made_up(self, endpoint: Endpoint) -> Report:
        """Return what `tag` would of an endpoint that there is not; one that notes or logs anything does not here."""
        return self.tag(endpoint)


class KnowsAccelerators(Tagger[P]):
    """A tagger that knows which accelerators there are."""

    refuses_unknown: bool = False
    """Whether a configuration that names an unknown accelerator is refused; otherwise there is a warning."""

    @abstractmethod
    def knows(self, name: str) -> bool:
        """Say whether there is a class, or a product, of that name."""

    @property
    def placement_templates(self) -> Collection[str]:
        """Names of the placement templates that are known."""
        return ()

    @property
    def selectors(self) -> Sequence[str]:
        """Objects with selectors of accelerators, which are for plugins that make selections."""
        return ()


@runtime_checkable
class NamesPlacementTemplate(Protocol):
    """A plugin that goes by a placement template."""

    @property
    def placement_template(self) -> str:
        """Its name; empty for the name of each endpoint's pool."""


def unknown_accelerators(plugin: Plugin[Any], sources: Sequence[KnowsAccelerators[Any]]) -> tuple[str, ...]:
    """Return the accelerators that the plugin names and no source knows; none without sources."""
    names = dict.fromkeys(plugin.accelerator_names) if sources else ()
    return tuple(name for name in names if not any(source.knows(name) for source in sources))


AffectedEndpoints: TypeAlias = Callable[[Endpoint], bool]
"""Whether an endpoint may be tagged otherwise than before."""


def no_endpoint(_endpoint: Endpoint) -> bool:
    """Return False: all endpoints are tagged as before."""
    return False


@dataclass(frozen=True, slots=True)
class EveryEndpoint:
    """All endpoints, which takes a while in a large pool."""

    first: AffectedEndpoints = no_endpoint
    """Those that are to be tagged before the others: new ones, say."""

    def __call__(self, _endpoint: Endpoint, /) -> bool:
        return True


every_endpoint = EveryEndpoint()


class FollowingTagger(Tagger[P]):
    """A tagger that comes to know more, or other, while it runs."""

    @abstractmethod
    async def follow(self, changed: Callable[[AffectedEndpoints], None]) -> None:
        """Keep up until cancelled; call `changed(every_endpoint)`, or with some, to have them tagged again soon."""


class Follower(Plugin[P], role=Role(title="Followers of files and services")):
    """Keeps up with files, or talks to a service, of its own while it runs."""

    @abstractmethod
    async def follow(self) -> None:
        """Apply new versions, or keep connections, until cancelled."""


class EndpointNotifications(Plugin[P], role=Role(title="Notifications")):
    """Stands, among the data sources, for the comings and goings of endpoints; its extractors are taggers."""


@dataclass(frozen=True, slots=True)
class Feed:
    """A data source, polled at every endpoint, and the extractors that read its pages."""

    source: DataSource[Any]
    extractors: tuple[Extractor[Any], ...]

    def asks(self, endpoint: Endpoint) -> bool:
        return self.source.asks(endpoint)
