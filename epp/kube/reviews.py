# SPDX-License-Identifier: Apache-2.0
"""Authentication and authorization of HTTP clients by TokenReview and SubjectAccessReview."""

import asyncio
import hashlib
from collections import OrderedDict
from enum import StrEnum
from typing import NamedTuple, TypeVar

import msgspec

from epp.framework.clock import Clock
from epp.kube.access import ApiError, ApiUnreachableError, KubeApi
from epp.kube.objects.base import Part, decoded
from epp.kube.resources import REVIEWS

ALLOWED_SECONDS, REFUSED_SECONDS = 60.0, 10.0
"""Time for which a verdict is cached."""
KEPT_SECONDS = 600.0
"""Time for which an allowed token stays allowed while the API server does not respond."""
_MOST_CACHED = 1024
_MOST_AT_ONCE = 8
_TOKENS, _ACCESS = (each.path("v1") for each in REVIEWS)
_FORBIDDEN = 403


R = TypeVar("R", bound=Part)


class Verdict(StrEnum):
    """Verdict for a token and a path."""

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
        """Return the verdict, perhaps from the cache; raises NoVerdictError.

        An allowed token stays allowed for ten minutes while the cluster does not respond.
        """
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
                raise NoVerdictError("too many tokens are being looked up: ask again in a moment")
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
            task.exception()  # marks it as retrieved, in case all callers are gone

    async def _review(self, token: str, path: str) -> Verdict:
        review = await self._post(_TOKENS, "TokenReview", "authentication.k8s.io/v1", {"token": token}, _TokenReview)
        if not review.authenticated:
            return Verdict.UNKNOWN
        spec = {
            "user": review.user,
            "uid": review.uid,
            "groups": review.groups,
            "extra": review.extra,
            "nonResourceAttributes": {"path": path, "verb": "get"},
        }
        access = await self._post(_ACCESS, "SubjectAccessReview", "authorization.k8s.io/v1", spec, AccessReview)
        return Verdict.ALLOWED if access.allowed else Verdict.FORBIDDEN

    async def _post(self, path: str, kind: str, version: str, spec: object, answer: type[R]) -> R:
        body = {"apiVersion": version, "kind": kind, "spec": spec}
        try:
            return decoded(await self._api.request("POST", path, body=body), answer)
        except ApiError as error:
            remedy = ": allow create of tokenreviews and subjectaccessreviews" if error.status == _FORBIDDEN else ""
            raise NoVerdictError(f"{kind} was refused: {error}{remedy}") from error
        except (ApiUnreachableError, ValueError) as error:
            raise NoVerdictError(str(error)) from error
