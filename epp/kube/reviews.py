# SPDX-License-Identifier: Apache-2.0
"""Reviews by an API server: identity and rights of HTTP clients, and rights of a picker by kind."""

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple, TypeVar

import msgspec

from epp.framework.clock import Clock
from epp.framework.errors import ConfigurationError
from epp.kube.access import ABSENT, FORBIDDEN, UNAUTHORIZED, ApiError, ApiUnreachableError, KubeApi
from epp.kube.collection import ApiCollection, ApiResources, in_first_version
from epp.kube.configuration import SETTING
from epp.kube.objects.base import Part, decoded
from epp.kube.resources import (
    LEGACY_OBJECTIVES,
    LEGACY_REWRITES,
    OBJECTIVES,
    REVIEWS,
    REWRITES,
    Importance,
    Need,
    Resource,
)

ALLOWED_SECONDS, REFUSED_SECONDS = 60.0, 10.0
"""Time for which a verdict is cached."""
KEPT_SECONDS = 600.0
"""Time for which an allowed token stays allowed while the API server does not respond."""
_MOST_CACHED = 1024
_MOST_AT_ONCE = 8
_AT_ONCE = 8
_FORMER = {OBJECTIVES: LEGACY_OBJECTIVES, REWRITES: LEGACY_REWRITES}
_TOKENS, _ACCESS = (each.group for each in REVIEWS)

R = TypeVar("R", bound=Part)


class Verdict(StrEnum):
    ALLOWED = "allowed"
    UNKNOWN = "unknown"
    FORBIDDEN = "forbidden"
    """The token is valid, but its user may not get the path."""


class NoVerdictError(Exception):
    """The cluster cannot decide at the moment."""


class _TokenReview(Part, frozen=True):
    authenticated: bool = msgspec.field(default=False, name="status.authenticated")
    user: str = msgspec.field(default="", name="status.user.username")
    uid: str = msgspec.field(default="", name="status.user.uid")
    groups: tuple[str, ...] = msgspec.field(default=(), name="status.user.groups")
    extra: dict[str, list[str]] = msgspec.field(default_factory=dict, name="status.user.extra")


class AccessReview(Part, frozen=True):
    """Response to a SubjectAccessReview or a SelfSubjectAccessReview."""

    allowed: bool = msgspec.field(default=False, name="status.allowed")


class _Cached(NamedTuple):
    verdict: Verdict
    at: float


class TokenReviews:
    """Reviews of tokens, cached for a minute for each token and path. Not thread-safe."""

    def __init__(self, api: KubeApi, clock: Clock) -> None:
        self._api = api
        self._clock = clock
        self._cache: OrderedDict[bytes, _Cached] = OrderedDict()
        self._pending: dict[bytes, asyncio.Task[Verdict]] = {}

    async def verdict(self, token: str, path: str) -> Verdict:
        """Return the verdict, perhaps from the cache; raises NoVerdictError."""
        if not token:
            return Verdict.UNKNOWN
        key = hashlib.sha256(f"{path}\0{token}".encode()).digest()
        known = self._cache.get(key)
        age = 0.0 if known is None else self._clock.now() - known.at
        if known is not None and age < (ALLOWED_SECONDS if known.verdict is Verdict.ALLOWED else REFUSED_SECONDS):
            return known.verdict
        try:
            return await self._shared_review(key, token, path)
        except NoVerdictError:
            if known is not None and known.verdict is Verdict.ALLOWED and age < KEPT_SECONDS:
                return known.verdict
            raise

    async def _shared_review(self, key: bytes, token: str, path: str) -> Verdict:
        """Send a review; concurrent calls for the same token and path share it."""
        task = self._pending.get(key)
        if task is None:
            if len(self._pending) >= _MOST_AT_ONCE:
                raise NoVerdictError("too many token reviews are in progress: try again in a moment")
            task = self._pending[key] = asyncio.create_task(self._review(token, path))
            task.add_done_callback(lambda done: self._ended(key, done))
        verdict = await asyncio.shield(task)  # other callers may wait for it after a cancellation
        self._cache[key] = _Cached(verdict, self._clock.now())
        self._cache.move_to_end(key)
        if len(self._cache) > _MOST_CACHED:
            self._cache.popitem(last=False)
        return verdict

    def _ended(self, key: bytes, task: asyncio.Task[Verdict]) -> None:
        del self._pending[key]
        if not task.cancelled():
            task.exception()  # marks it as retrieved, even if all callers were cancelled

    async def _review(self, token: str, path: str) -> Verdict:
        review = await self._review_of("TokenReview", _TOKENS, _TokenReview, {"token": token})
        if not review.authenticated:
            return Verdict.UNKNOWN
        spec = {
            "user": review.user,
            "uid": review.uid,
            "groups": review.groups,
            "extra": review.extra,
            "nonResourceAttributes": {"path": path, "verb": "get"},
        }
        access = await self._review_of("SubjectAccessReview", _ACCESS, AccessReview, spec)
        return Verdict.ALLOWED if access.allowed else Verdict.FORBIDDEN

    async def _review_of(self, kind: str, group: str, response: type[R], spec: object) -> R:
        try:
            return await _reviewed(self._api, kind, group, response, spec)
        except ApiError as error:
            remedy = ": allow create of tokenreviews and subjectaccessreviews" if error.status == FORBIDDEN else ""
            raise NoVerdictError(f"{kind} was rejected: {error}{remedy}") from error
        except (ApiUnreachableError, ValueError) as error:
            raise NoVerdictError(str(error)) from error


async def _reviewed(api: KubeApi, kind: str, group: str, response: type[R], spec: object = None) -> R:
    """Return the response to a review; raises ApiError, ApiUnreachableError and ValueError."""
    body = {"apiVersion": f"{group}/v1", "kind": kind, **({} if spec is None else {"spec": spec})}
    return decoded(await api.request("POST", f"/apis/{group}/v1/{kind.lower()}s", body=body), response)


class AccessState(StrEnum):
    ALLOWED = "allowed"
    FORBIDDEN = "forbidden"
    ABSENT = "not installed"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Rights of a user, for one need of the picker."""

    need: Need
    state: AccessState
    version: str = ""
    """API version in which the objects are read; empty if they cannot be read."""
    missing: Sequence[str] = ()
    """Forbidden verbs, including optional ones."""
    untried: Sequence[str] = ()
    """Verbs with unknown result: the API server does not support reviews, and a test would write an object."""
    reason: str = ""


class _User(Part, frozen=True):
    name: str = msgspec.field(default="", name="status.userInfo.username")


class _List(Part, frozen=True):
    version: str = msgspec.field(default="", name="metadata.resourceVersion")


async def user_of(api: KubeApi, setting: str = SETTING) -> str:
    """Return the user name according to the API server; empty if the server is older than 1.28.

    Raises ConfigurationError, with the setting, if the server does not respond or rejects the credentials.
    """
    try:
        return (await _reviewed(api, "SelfSubjectReview", _TOKENS, _User)).name
    except ApiUnreachableError as error:
        raise ConfigurationError(
            f"no response from the API server: {error}; start it, or correct its address in the kubeconfig ({setting})"
        ) from error
    except ApiError as error:
        if error.status == UNAUTHORIZED:
            raise ConfigurationError(
                f"the API server {api.server} rejects the credentials: {error}; log in again, or set a kubeconfig with "
                f"a valid token or certificate ({setting})"
            ) from error
        if "cannot impersonate" in str(error):
            raise ConfigurationError(f"--as: {error}; allow the user of the kubeconfig to impersonate") from error
        return ""
    except ValueError as error:
        raise ConfigurationError(
            f"{api.server} does not respond like a Kubernetes API server: {error}; correct the kubeconfig"
        ) from error


async def check_access(api: KubeApi, needs: Iterable[Need]) -> tuple[Access, ...]:
    """Return the rights of the user for each need; raises ApiUnreachableError."""
    check = _Check(api)
    found = await asyncio.gather(*(check.access(need) for need in needs))
    states = {each.need.resource: each.state for each in found}
    unneeded = {former for now, former in _FORMER.items() if states.get(now) is not AccessState.ABSENT}
    return tuple(
        replace(each, need=replace(each.need, importance=Importance.OPTIONAL))
        if each.need.resource in unneeded
        else each
        for each in found
    )


def _first(need: Need) -> dict[str, str]:
    return {"limit": "1", **({"fieldSelector": f"metadata.name={need.name}"} if need.name else {})}


class _Check:
    def __init__(self, api: KubeApi) -> None:
        self._api = api
        self._limit = asyncio.Semaphore(_AT_ONCE)

    async def access(self, need: Need) -> Access:
        reviews = await asyncio.gather(*(self._review(need, verb) for verb in need.verbs))
        verbs = dict(zip(need.verbs, reviews, strict=True))
        version, reason = "", ""
        if need.is_read:
            version, error = await self._list(need)
            if error is not None and error.status in ABSENT:
                return Access(need=need, state=AccessState.ABSENT)
            if error is not None and error.status != FORBIDDEN:
                return Access(need=need, state=AccessState.FAILED, reason=str(error))
            verbs["list"] = error is None
            reason = "" if error is None else str(error)
            if "watch" in verbs and verbs["watch"] is None and error is None:
                verbs["watch"] = await self._may_watch(need, version)
        missing = tuple(verb for verb, allowed in verbs.items() if allowed is False)
        if missing and not version and not await self._is_installed(need.resource):
            return Access(need=need, state=AccessState.ABSENT)
        return Access(
            need=need,
            state=AccessState.FORBIDDEN if {*missing} - {*need.dispensable} else AccessState.ALLOWED,
            version=version,
            missing=missing,
            untried=tuple(verb for verb, allowed in verbs.items() if allowed is None),
            reason=reason,
        )

    async def _review(self, need: Need, verb: str) -> bool | None:
        """Return whether a verb is allowed; None if the API server does not support reviews."""
        resource = {"group": need.resource.group, "resource": need.resource.plural}
        spec = {"resourceAttributes": {"verb": verb, **resource, "namespace": need.namespace, "name": need.name}}
        try:
            async with self._limit:
                return (await _reviewed(self._api, "SelfSubjectAccessReview", _ACCESS, AccessReview, spec)).allowed
        except (ApiError, ValueError):
            return None

    async def _list(self, need: Need) -> tuple[str, ApiError | None]:
        """Return the first API version whose list request succeeds, or the error."""
        collection = ApiCollection(need.resource, need.namespace)
        try:
            await in_first_version(collection, lambda: self._get(collection.path, _first(need)))
        except ApiError as error:
            return "", error
        return collection.version, None

    async def _may_watch(self, need: Need, version: str) -> bool | None:
        """Open a watch for one second; None for an error other than 403."""
        path = need.resource.path(version, need.namespace)
        try:
            now = decoded(await self._get(path, _first(need)), _List).version
            params = {**_first(need), "watch": "true", "timeoutSeconds": "1", "resourceVersion": now}
            await self._get(path, params)
        except ApiError as error:
            return False if error.status == FORBIDDEN else None
        except ValueError:
            return None
        return True

    async def _is_installed(self, resource: Resource) -> bool:
        """Return whether the API server has the resource; True if discovery fails."""
        for version in resource.versions:
            try:
                response = await self._get(resource.path(version).rpartition("/")[0])
                if any(each.name == resource.plural for each in decoded(response, ApiResources).resources):
                    return True
            except ApiError as error:
                if error.status not in ABSENT:
                    return True
            except ValueError:
                return True
        return False

    async def _get(self, path: str, params: Mapping[str, str] | None = None) -> bytes:
        async with self._limit:
            return await self._api.request("GET", path, params=params)
