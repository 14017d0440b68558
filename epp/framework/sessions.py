"""What ties a session to the endpoint that served it last: a token that the client brings back, or a memory here."""

import binascii
from base64 import b64decode, b64encode
from collections import OrderedDict
from collections.abc import Mapping
from types import MappingProxyType

import xxhash

from epp.framework.candidates import Candidates
from epp.framework.clock import Clock
from epp.framework.endpoint import Endpoint
from epp.framework.headers import SESSION_ID as SESSION_ID_HEADER
from epp.framework.headers import SESSION_TOKEN
from epp.framework.plugin import Datum, Parameters
from epp.framework.request import AGENT_IDENTITY, SESSION_ID, DataKey, Request
from epp.framework.response import Response
from epp.framework.result import SchedulingResult

ENCODED_ENDPOINT_HEADER = "encoded_endpoint_header"
SESSION_ID_STRATEGY = "session_id"
_STRATEGIES = (ENCODED_ENDPOINT_HEADER, SESSION_ID_STRATEGY)
_ATTRIBUTES: Mapping[str, DataKey[str]] = MappingProxyType(
    {"session-id": SESSION_ID, "SessionID": SESSION_ID, "agent-identity": AGENT_IDENTITY}
)


class EncodedEndpointHeader(Parameters, frozen=True):
    """For the strategy `encoded_endpoint_header`."""

    header: str = SESSION_TOKEN
    """Header that brings the token with a request and takes it back with the response."""

    def __post_init__(self) -> None:
        """Refuse a nameless header."""
        if not self.header:
            raise ValueError("encodedEndpointHeaderConfig.header is empty; name a header")


class SessionIdSource(Parameters, frozen=True):
    """One place where a session id may be found: a header, or what a producer put on the request."""

    header: str = ""
    """Name of a request header."""
    attribute: str = ""
    """`session-id` (or `SessionID`), which a `session-id-producer` finds, or `agent-identity`."""
    producer: str = ""
    """Name of the `session-id-producer` instance that is read; empty for the default one. Of agent identities there
    is one for each request, whatever the plugin that finds it is called."""

    def __post_init__(self) -> None:
        """Refuse what names no place, two, or one that is not known."""
        if bool(self.header) == bool(self.attribute):
            raise ValueError("an entry of sessionIdConfig.sources takes either a header or an attribute")
        if self.producer and not self.attribute:
            raise ValueError(f"header {self.header!r} in sessionIdConfig.sources has a producer; remove it")
        if self.attribute and self.attribute not in _ATTRIBUTES:
            raise ValueError(
                f"attribute {self.attribute!r} in sessionIdConfig.sources is not known; use {', '.join(_ATTRIBUTES)}"
            )

    @property
    def key(self) -> DataKey[str] | None:
        """What is read of the request; None for a header."""
        if self.header:
            return None
        key = _ATTRIBUTES[self.attribute]
        return key.produced_by(self.producer) if key is SESSION_ID else key

    def find(self, request: Request) -> str:
        """Return the session id; empty for none."""
        key = self.key
        return (request.headers.get(self.header.lower()) if key is None else request.get(key)) or ""


class SessionIds(Parameters, frozen=True):
    """For the strategy `session_id`."""

    sources: tuple[SessionIdSource, ...] = (SessionIdSource(header=SESSION_ID_HEADER),)
    """Where the session id is looked for, in this order; the first one that is not empty counts."""
    eviction_ttl_seconds: float = 300.0
    """Time after its last use at which a session is forgotten."""
    eviction_sweep_seconds: float = 10.0
    """Time between two rounds in which forgotten sessions give back their memory."""
    max_sessions: int = 100_000
    """Sessions remembered, at most; beyond that the least recently used ones go. A session takes about 250 bytes."""

    def __post_init__(self) -> None:
        """Refuse what would remember nothing."""
        if not self.sources:
            raise ValueError("sessionIdConfig.sources is empty; list a header or an attribute, or leave it out")
        for name, value in (
            ("evictionTtlSeconds", self.eviction_ttl_seconds),
            ("evictionSweepSeconds", self.eviction_sweep_seconds),
        ):
            if not value > 0:
                raise ValueError(f"sessionIdConfig.{name} is {value}; it must be more than 0")
        if self.max_sessions < 1:
            raise ValueError(f"sessionIdConfig.maxSessions is {self.max_sessions}; it must be at least 1")


class Bindings:
    """Sessions and the endpoint of each, least recently used first: never more than `limit`, none older than the TTL.

    Session ids are kept as 128-bit hashes, so that memory does not depend on what clients send.
    """

    __slots__ = ("_bound", "_limit", "_sweep_seconds", "_swept_at", "_ttl_seconds")

    def __init__(self, *, ttl_seconds: float, sweep_seconds: float, limit: int) -> None:
        self._ttl_seconds = ttl_seconds
        self._sweep_seconds = sweep_seconds
        self._limit = limit
        self._swept_at: float | None = None
        self._bound: OrderedDict[bytes, tuple[str, float]] = OrderedDict()

    def __len__(self) -> int:
        """Sessions in memory, those included that have expired since the last round."""
        return len(self._bound)

    def find(self, session: str, now: float) -> str | None:
        """Return the id of the session's endpoint, which counts as use; None for one not known, or expired."""
        self._sweep(now)
        key = _digest(session)
        found = self._bound.get(key)
        if found is None:
            return None
        endpoint, used_at = found
        if self._expired(used_at, now):
            del self._bound[key]
            return None
        self._use(key, endpoint, now)
        return endpoint

    def bind(self, session: str, endpoint: str, now: float) -> None:
        """Make the endpoint of that id the session's, whatever it was before."""
        self._sweep(now)
        self._use(_digest(session), endpoint, now)
        if len(self._bound) > self._limit:
            self._bound.popitem(last=False)

    def _use(self, key: bytes, endpoint: str, now: float) -> None:
        self._bound[key] = (endpoint, now)
        self._bound.move_to_end(key)

    def _expired(self, used_at: float, now: float) -> bool:
        return now - used_at >= self._ttl_seconds

    def _sweep(self, now: float) -> None:
        """Drop what has expired, all of it at the front, unless the last round was just now."""
        if self._swept_at is not None and now - self._swept_at < self._sweep_seconds:
            return
        self._swept_at = now
        while self._bound:
            _, used_at = next(iter(self._bound.values()))
            if not self._expired(used_at, now):
                return
            self._bound.popitem(last=False)


class SessionAffinity:
    """What a filter and a scorer share: who served the session of a request last, by one of two strategies."""

    __slots__ = ("_bindings", "_clock", "_header", "_profile", "_sources", "_target_key", "reads")

    def __init__(
        self,
        *,
        strategy: str,
        token: EncodedEndpointHeader,
        sessions: SessionIds,
        profile: str,
        owner: str,
        clock: Clock,
    ) -> None:
        if strategy not in _STRATEGIES:
            raise ValueError(f"strategy {strategy!r} is not known; use {' or '.join(_STRATEGIES)}")
        self._clock = clock
        self._profile = profile
        self._header = token.header.lower()
        self._target_key: DataKey[str] = DataKey("session-target", producer=owner)
        self._sources = sessions.sources
        self._bindings: Bindings | None = None
        self.reads: tuple[Datum, ...] = ()
        """What the sources of session ids need."""
        if strategy == SESSION_ID_STRATEGY:
            self.reads = tuple(source.key for source in self._sources if source.key is not None)
            self._bindings = Bindings(
                ttl_seconds=sessions.eviction_ttl_seconds,
                sweep_seconds=sessions.eviction_sweep_seconds,
                limit=sessions.max_sessions,
            )

    def slot(self, request: Request, candidates: Candidates) -> int | None:
        """Return the slot of the session's endpoint; None where there is none in the pool."""
        endpoint = self._endpoint(request)
        if endpoint is None:
            return None
        return candidates.snapshot.endpoints.derive(_slots_by_id).get(endpoint)

    def chosen(self, request: Request, result: SchedulingResult) -> None:
        """Take note of where the request goes in the profile that is looked at; nowhere where that did not run."""
        profile = result.profiles.get(self._profile) if self._profile else result.primary
        target = "" if profile is None else profile.targets[0].id
        if self._bindings is None:
            if profile is None or profile.profile != result.primary.profile:
                request.put(self._target_key, target)
            return
        session = self._session(request)
        if target and session:
            self._bindings.bind(session, target, self._clock.now())

    def response_headers(self, request: Request, response: Response) -> Mapping[str, str]:
        """Return the token for the client: of who served the request, or was chosen by the profile looked at."""
        if self._bindings is not None:
            return {}
        target = request.get(self._target_key)
        endpoint = response.served.id if target is None else target
        return {self._header: encode_endpoint(endpoint)} if endpoint else {}

    def _endpoint(self, request: Request) -> str | None:
        if self._bindings is None:
            return decode_endpoint(request.headers.get(self._header, ""))
        session = self._session(request)
        return self._bindings.find(session, self._clock.now()) if session else None

    def _session(self, request: Request) -> str:
        return next(filter(None, (source.find(request) for source in self._sources)), "")


def encode_endpoint(endpoint: str) -> str:
    """Return the token of an endpoint's id: its base64."""
    return b64encode(endpoint.encode()).decode("ascii")


def decode_endpoint(token: str) -> str | None:
    """Return the endpoint's id; None for what is no token."""
    try:
        return b64decode(token.encode("ascii"), validate=True).decode() or None
    except (binascii.Error, UnicodeError):
        return None


def _digest(session: str) -> bytes:
    return xxhash.xxh3_128_digest(session.encode("utf-8", "surrogatepass"))


def _slots_by_id(endpoints: tuple[Endpoint | None, ...]) -> Mapping[str, int]:
    return {endpoint.id: slot for slot, endpoint in enumerate(endpoints) if endpoint is not None}
