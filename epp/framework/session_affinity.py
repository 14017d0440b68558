# SPDX-License-Identifier: Apache-2.0
"""Session affinity: binds a session to the endpoint that served it last, by a token or by the session id."""

import binascii
from base64 import b64decode, b64encode
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Generic, Literal

import xxhash
from msgspec import Meta
from typing_extensions import TypeVar

from epp.framework.arrays import Mask
from epp.framework.candidates import Candidates
from epp.framework.endpoint import Endpoint, Identity
from epp.framework.headers import SESSION_ID as SESSION_ID_HEADER
from epp.framework.headers import SESSION_TOKEN
from epp.framework.limits import Corrected, Count, NameOrDefault, PositiveOrDefault
from epp.framework.plugin import Parameters
from epp.framework.request import AGENT_IDENTITY, SESSION_ID, DataKey, Request, Response
from epp.framework.result import ProfileResult, SchedulingResult
from epp.framework.roles import PreRequest, ResponseHeaders
from epp.framework.snapshot import Snapshot

_ATTRIBUTES: Mapping[str, DataKey[str]] = MappingProxyType(
    {
        "session-id": SESSION_ID,
        "SessionID": SESSION_ID,
        "SessionIDDataKey": SESSION_ID,
        "agent-identity": AGENT_IDENTITY,
    }
)


class EncodedEndpointHeader(Parameters, frozen=True):
    """Parameters of the strategy `encoded_endpoint_header`."""

    header: NameOrDefault = SESSION_TOKEN
    """Name of the header that carries the token, in requests and in responses."""


class SessionIdSource(Parameters, frozen=True):
    """One source of session ids: a request header, or the output of a plugin."""

    header: str = ""
    """Name of a request header."""
    attribute: Literal["session-id", "SessionID", "SessionIDDataKey", "agent-identity", ""] = ""
    """`session-id` (or `SessionID` or `SessionIDDataKey`): the output of a `session-id-producer`. `agent-identity`: the
    output of the `agent-identity` plugin."""
    producer: str = ""
    """Name of the `session-id-producer` instance; empty for the default one. It has no effect on `agent-identity`."""

    def __post_init__(self) -> None:
        if bool(self.header) == bool(self.attribute):
            raise ValueError("an entry of sessionIdConfig.sources takes either a header or an attribute")
        if self.producer and not self.attribute:
            raise ValueError(f"header {self.header!r} in sessionIdConfig.sources has a producer; remove it")

    @property
    def key(self) -> DataKey[str] | None:
        """Request data that holds the session id; None for a header."""
        if self.header:
            return None
        key = _ATTRIBUTES[self.attribute]
        return key.produced_by(self.producer) if key is SESSION_ID else key

    def find(self, request: Request) -> str:
        """Return the session id; empty if there is none."""
        key = self.key
        return (request.headers.get(self.header.lower()) if key is None else request.get(key)) or ""


class SessionIds(Parameters, frozen=True):
    """Parameters of the strategy `session_id`."""

    sources: Annotated[tuple[SessionIdSource, ...], Meta(min_length=1), Corrected()] = (
        SessionIdSource(header=SESSION_ID_HEADER),
    )
    """Sources of the session id, in order; the first value that is not empty is used."""
    eviction_ttl_seconds: PositiveOrDefault = 300.0
    """Time after its last use at which a session expires."""
    eviction_sweep_seconds: PositiveOrDefault = 10.0
    """Time between two sweeps that free the memory of expired sessions."""
    max_sessions: Count = 100_000
    """Maximum number of sessions; beyond it, the least recently used are dropped. A session takes about 250 bytes."""

    @property
    def keys(self) -> tuple[DataKey[str], ...]:
        """Request data that holds session ids."""
        return tuple(source.key for source in self.sources if source.key is not None)

    def session(self, request: Request) -> str:
        return next(filter(None, (source.find(request) for source in self.sources)), "")


class SessionAffinityParameters(Parameters, frozen=True):
    """Parameters of session affinity."""

    strategy: Literal["encoded_endpoint_header", "session_id"] = "encoded_endpoint_header"
    """`encoded_endpoint_header`: the client sends back a token that names the endpoint; the picker keeps no state.
    `session_id`: the client names its session; the picker remembers the endpoint."""
    encoded_endpoint_header_config: EncodedEndpointHeader = EncodedEndpointHeader()
    """Parameters of the strategy `encoded_endpoint_header`."""
    session_id_config: SessionIds = SessionIds()
    """Parameters of the strategy `session_id`."""
    profile_name: str = ""
    """Profile whose endpoint is bound, such as `prefill`; empty for the profile that selects the destination."""


SP = TypeVar("SP", bound=SessionAffinityParameters, default=SessionAffinityParameters)
BLOCKS_SEARCHED = 256
"""Number of trailing blocks of a prompt that are searched for an earlier prompt, which limits the time."""


class Conversations:
    """Number of the endpoint that computed each conversation last, without session ids.

    A prompt is a chain of block hashes. Its key is the block before the last one: that block is complete, so each
    prompt that continues it has the same block. At most `limit` prompts are stored, at 75 bytes each; then the older
    half is dropped.
    """

    def __init__(self, limit: int = 16_384) -> None:
        self._half = limit // 2
        self._recent: dict[int, int] = {}
        self._older: dict[int, int] = {}

    def __len__(self) -> int:
        """Return the number of stored prompts."""
        return len(self._recent) + len(self._older)

    def find(self, hashes: Sequence[int]) -> tuple[int, int]:
        """Return the endpoint that computed the longest prefix of this prompt, and the number of its blocks.

        Returns -1 and 0 for a new conversation.
        """
        recent, older, count = self._recent, self._older, len(hashes)
        for block in reversed(hashes[-BLOCKS_SEARCHED:]):
            if block in recent:
                return recent[block], count
            if block in older:
                return older[block], count
            count -= 1
        return -1, 0

    def note(self, hashes: Sequence[int], endpoint: int) -> None:
        if len(hashes) > 1:
            self._recent[hashes[-2]] = endpoint
            if len(self._recent) >= self._half:
                self._recent, self._older = {}, self._recent

    def withdraw(self, hashes: Sequence[int], endpoint: int) -> None:
        """Forget a prompt if this endpoint was the last one recorded for it."""
        if len(hashes) > 1:
            for known in (self._recent, self._older):
                if known.get(hashes[-2]) == endpoint:
                    del known[hashes[-2]]

    def forget(self, *endpoints: int) -> None:
        """Forget all prompts of endpoints."""
        self._recent, self._older = (
            {block: each for block, each in known.items() if each not in endpoints}
            for known in (self._recent, self._older)
        )


B = TypeVar("B", default=Identity)


class Bindings(Generic[B]):
    """Endpoint, or another value, of each session: at most `limit` sessions, none older than the TTL.

    Sessions are in order of use, the least recent first. Session ids are stored as 128-bit hashes, so that the memory
    does not depend on their length.
    """

    def __init__(self, *, ttl_seconds: float, sweep_seconds: float, limit: int) -> None:
        self._ttl_seconds = ttl_seconds
        self._sweep_seconds = sweep_seconds
        self._limit = limit
        self._swept_at: float | None = None
        self._bound: OrderedDict[bytes, tuple[B, float]] = OrderedDict()

    def __len__(self) -> int:
        """Return the number of sessions in memory, including those that expired since the last sweep."""
        return len(self._bound)

    def find(self, session: str, now: float, *, use: bool = True) -> B | None:
        """Return the endpoint of the session; None for an unknown or expired session.

        With `use`, the call counts as a use of the session.
        """
        key = session_digest(session)
        if use:
            self._sweep(now)
        bound, used_at = self._bound.get(key, (None, now))
        if bound is None or self._expired(used_at, now):
            return None
        if use:
            self._use(key, bound, now)
        return bound

    def bind(self, session: str, to: B, now: float) -> None:
        self.bind_digest(session_digest(session), to, now)

    def bind_digest(self, digest: bytes, to: B, now: float) -> None:
        self._sweep(now)
        self._use(digest, to, now)
        if len(self._bound) > self._limit:
            self._bound.popitem(last=False)

    def unbind(self, session: str, to: B) -> None:
        key = session_digest(session)
        found = self._bound.get(key)
        if found is not None and found[0] == to:
            del self._bound[key]

    def _use(self, key: bytes, to: B, now: float) -> None:
        self._bound[key] = (to, now)
        self._bound.move_to_end(key)

    def _expired(self, used_at: float, now: float) -> bool:
        return now - used_at >= self._ttl_seconds

    def _sweep(self, now: float) -> None:
        """Drop expired sessions, which are all at the front, unless the last sweep was less than an interval ago."""
        if self._swept_at is not None and now - self._swept_at < self._sweep_seconds:
            return
        self._swept_at = now
        while self._bound:
            _, used_at = next(iter(self._bound.values()))
            if not self._expired(used_at, now):
                return
            self._bound.popitem(last=False)


class SessionAffinity(PreRequest[SP], ResponseHeaders[SP]):
    """Base of the filter and the scorer of session affinity."""

    def setup(self) -> None:
        ids = self.parameters.session_id_config
        self._header = self.parameters.encoded_endpoint_header_config.header.lower()
        self._target_key: DataKey[str] = DataKey("session-target", producer=self.name)
        self._bindings: Bindings[Identity] | None = None
        if self.parameters.strategy == "session_id":
            self.reads = ids.keys
            self._bindings = Bindings(
                ttl_seconds=ids.eviction_ttl_seconds, sweep_seconds=ids.eviction_sweep_seconds, limit=ids.max_sessions
            )

    def bound(self, request: Request, candidates: Candidates) -> Mask:
        """Mark the endpoint of the request's session; no candidate is marked if it is unknown or not among them."""
        slot = self._slot(request, candidates.snapshot)
        mask: Mask = candidates.slots == (-1 if slot is None else slot)
        return mask

    def pre_request(self, request: Request, result: SchedulingResult) -> None:
        profile = self._profile(result)
        target = None if profile is None else profile.targets[0]
        if self._bindings is None:
            if profile is None or profile.profile != result.primary.profile:
                request.put(self._target_key, "" if target is None else target.id)
        elif target is not None and (session := self._session(request)):
            self._bindings.bind(session, target.identity, self.clock.now())

    def request_failed(self, request: Request, result: SchedulingResult) -> None:
        profile = self._profile(result)
        if self._bindings is not None and profile is not None and (session := self._session(request)):
            self._bindings.unbind(session, profile.targets[0].identity)

    def _profile(self, result: SchedulingResult) -> ProfileResult | None:
        wanted = self.parameters.profile_name
        return result.profiles.get(wanted) if wanted else result.primary

    def response_headers(self, request: Request, response: Response) -> Mapping[str, str]:
        """Return the token of the endpoint that served the request, or of the target recorded for `profileName`."""
        if self._bindings is not None:
            return {}
        target = request.get(self._target_key)
        endpoint = response.served.id if target is None else target
        return {self._header: encode_endpoint(endpoint)} if endpoint else {}

    def _slot(self, request: Request, snapshot: Snapshot) -> int | None:
        """Return the slot of the endpoint of the request's session.

        A session id is bound to one pod: another pod of the same name does not have its KV cache. A token contains only
        the name, so it stays valid for the next pod of that name.
        """
        slots = snapshot.endpoints.derive(_slots_by_id)
        if self._bindings is None:
            endpoint = decode_endpoint(request.headers.get(self._header, ""))
            return None if endpoint is None else slots.get(endpoint)
        session = self._session(request)
        bound = self._bindings.find(session, self.clock.now(), use=not request.dry_run) if session else None
        slot = None if bound is None else slots.get(bound.id)
        if bound is None or slot is None:
            return None
        found = snapshot.endpoints.values[slot]
        return None if found is None or found.identity.is_another_than(bound) else slot

    def _session(self, request: Request) -> str:
        return self.parameters.session_id_config.session(request)


def encode_endpoint(endpoint: str) -> str:
    return b64encode(endpoint.encode()).decode("ascii")


def decode_endpoint(token: str) -> str | None:
    """Return the endpoint's id; None for a malformed token."""
    try:
        return b64decode(token.encode("ascii"), validate=True).decode() or None
    except (binascii.Error, UnicodeError):
        return None


def session_digest(session: str) -> bytes:
    """Return a 16-byte digest of a session id, which is the same in every process."""
    return xxhash.xxh3_128_digest(session.encode("utf-8", "surrogatepass"))


def _slots_by_id(endpoints: tuple[Endpoint | None, ...]) -> Mapping[str, int]:
    return {endpoint.id: slot for slot, endpoint in enumerate(endpoints) if endpoint is not None}
