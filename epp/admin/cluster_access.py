# SPDX-License-Identifier: Apache-2.0
"""Access to the metrics page by Kubernetes token and subject access reviews."""

import asyncio
from http import HTTPStatus

import structlog

from epp.admin.access import bearer
from epp.admin.answers import AdminError
from epp.kube.reviews import NoVerdictError, TokenReviews, Verdict
from epp.telemetry.http_request import HttpRequest
from epp.telemetry.http_thread import Answer

_LONGEST_TOKEN = 8192

_log = structlog.get_logger()


class ClusterAccess:
    """Says of a request to the metrics port why it is refused; asked in the thread of the page."""

    def __init__(self, reviews: TokenReviews) -> None:
        self._reviews = reviews
        self._loop: asyncio.AbstractEventLoop | None = None
        self._said = ""

    def start(self) -> None:
        """Ask the cluster on the running event loop from now on."""
        self._loop = asyncio.get_running_loop()

    async def __call__(self, request: HttpRequest) -> Answer | None:
        """Return the refusal; None for a request that may be answered."""
        token = bearer(request)
        if not token or len(token) > _LONGEST_TOKEN:
            return _unauthorized("there is no token")
        try:
            verdict = await self._verdict(token, request.path)
        except (NoVerdictError, RuntimeError) as error:  # RuntimeError: the loop is closed
            if str(error) != self._said:
                self._said = str(error)
                _log.warning("metrics page: the cluster cannot be asked who may read it", reason=self._said)
            text = "the Kubernetes API cannot be asked who may read this: see the log of the picker, and ask again"
            return AdminError(HTTPStatus.SERVICE_UNAVAILABLE, "Unavailable", text, headers={"Retry-After": "5"}).answer
        if verdict is Verdict.ALLOWED:
            return None
        if verdict is Verdict.UNKNOWN:
            return _unauthorized("the Kubernetes API does not know the token")
        text = f"this account may not get {request.path}: give it a ClusterRole with that path in nonResourceURLs"
        return AdminError(HTTPStatus.FORBIDDEN, "Forbidden", text).answer

    async def _verdict(self, token: str, path: str) -> Verdict:
        if self._loop is None:
            raise NoVerdictError("the picker starts")
        asked = self._reviews.verdict(token, path)
        try:
            future = asyncio.run_coroutine_threadsafe(asked, self._loop)
        except RuntimeError:
            asked.close()
            raise
        return await asyncio.wrap_future(future)


def _unauthorized(why: str) -> Answer:
    return AdminError(
        HTTPStatus.UNAUTHORIZED,
        "Unauthorized",
        f"{why}: send `Authorization: Bearer` with the token of a service account that may get this path",
        headers={"WWW-Authenticate": "Bearer"},
    ).answer
