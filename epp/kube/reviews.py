# SPDX-License-Identifier: Apache-2.0
"""Whether the cluster knows the sender of a token, and lets him get a path: TokenReview and SubjectAccessReview."""

import asyncio
import hashlib
from collections import OrderedDict
from enum import StrEnum
from typing import NamedTuple, TypeVar

import msgspec

from epp.framework.clock import Clock
from epp.kube.access import ApiError, ApiUnreachableError, KubeApi
from epp.kube.resources import REVIEWS

ALLOWED_SECONDS, REFUSED_SECONDS = 60.0, 10.0
"""Time for which an answer counts."""
KEPT_SECONDS = 600.0
"""Time for which a token that was allowed is while the API server does not answer."""
_MOST_REMEMBERED = 1024
_MOST_AT_ONCE = 8
_TOKENS, _ACCESS = (each.path("v1") for each in REVIEWS)
_FORBIDDEN = 403


R = TypeVar("R", bound=msgspec.Struct)


class Verdict(StrEnum):
    """What the cluster says of a token and a path."""

    ALLOWED = "allowed"
    UNKNOWN = "unknown"
    """Nobody has this token."""
    FORBIDDEN = "forbidden"
    """Somebody has it, and may not get the path."""


class NoVerdictError(Exception):
    """The cluster cannot be asked now."""


class _User(msgspec.Struct, frozen=True):
    username: str = ""
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: dict[str, list[str]] = {}


class _TokenStatus(msgspec.Struct, frozen=True):
    authenticated: bool = False
    user: _User = _User()


class _TokenReview(msgspec.Struct, frozen=True):
    status: _TokenStatus = _TokenStatus()


class _AccessStatus(msgspec.Struct, frozen=True):
    allowed: bool = False


class _AccessReview(msgspec.Struct, frozen=True):
    status: _AccessStatus = _AccessStatus()


class _Remembered(NamedTuple):
    verdict: Verdict
    at: float


class TokenReviews:
    """Asks the cluster, once a minute for each token and path; for one event loop."""

    def __init__(self, api: KubeApi, clock: Clock) -> None:
        self._api = api
        self._clock = clock
        self._known: OrderedDict[bytes, _Remembered] = OrderedDict()
        self._asking: dict[bytes, asyncio.Task[Verdict]] = {}

    async def verdict(self, token: str, path: str) -> Verdict:
        """Return what the cluster says now, or said a moment ago; raises NoVerdictError.

        A token that was allowed is allowed for ten minutes more while the cluster does not answer.
        """
        if not token:
            return Verdict.UNKNOWN
        key = hashlib.sha256(f"{path}\0{token}".encode()).digest()
        known = self._known.get(key)
        age = 0.0 if known is None else self._clock.now() - known.at
        if known is not None and age < (ALLOWED_SECONDS if known.verdict is Verdict.ALLOWED else REFUSED_SECONDS):
            return known.verdict
        try:
            return await self._asked(key, token, path)
        except NoVerdictError:
            if known is not None and known.verdict is Verdict.ALLOWED and age < KEPT_SECONDS:
                return known.verdict
            raise

    async def _asked(self, key: bytes, token: str, path: str) -> Verdict:
        """Ask, once for all that wait for the same."""
        task = self._asking.get(key)
        if task is None:
            if len(self._asking) >= _MOST_AT_ONCE:
                raise NoVerdictError("too many tokens are being looked up: ask again in a moment")
            task = self._asking[key] = asyncio.create_task(self._ask(token, path))
            task.add_done_callback(lambda done: self._ended(key, done))
        verdict = await asyncio.shield(task)  # others may wait for it if this one is given up
        self._known[key] = _Remembered(verdict, self._clock.now())
        self._known.move_to_end(key)
        if len(self._known) > _MOST_REMEMBERED:
            self._known.popitem(last=False)
        return verdict

    def _ended(self, key: bytes, task: asyncio.Task[Verdict]) -> None:
        del self._asking[key]
        if not task.cancelled():
            task.exception()  # which is told to those that wait, if any do

    async def _ask(self, token: str, path: str) -> Verdict:
        review = await self._post(_TOKENS, "TokenReview", "authentication.k8s.io/v1", {"token": token}, _TokenReview)
        if not review.status.authenticated:
            return Verdict.UNKNOWN
        user = review.status.user
        spec = {
            "user": user.username,
            "uid": user.uid,
            "groups": user.groups,
            "extra": user.extra,
            "nonResourceAttributes": {"path": path, "verb": "get"},
        }
        access = await self._post(_ACCESS, "SubjectAccessReview", "authorization.k8s.io/v1", spec, _AccessReview)
        return Verdict.ALLOWED if access.status.allowed else Verdict.FORBIDDEN

    async def _post(self, path: str, kind: str, version: str, spec: object, answer: type[R]) -> R:
        body = {"apiVersion": version, "kind": kind, "spec": spec}
        try:
            return msgspec.json.decode(await self._api.request("POST", path, body=body), type=answer)
        except ApiError as error:
            remedy = ": allow create of tokenreviews and subjectaccessreviews" if error.status == _FORBIDDEN else ""
            raise NoVerdictError(f"{kind} was refused: {error}{remedy}") from error
        except (ApiUnreachableError, msgspec.DecodeError) as error:
            raise NoVerdictError(str(error)) from error
