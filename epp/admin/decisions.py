# SPDX-License-Identifier: Apache-2.0
"""Decisions on the admin port: the latest records, and one by its id."""

from datetime import UTC, datetime
from http import HTTPStatus

from aiohttp import web
from msgspec import Raw

from epp.admin.answers import AdminError, BadAdminRequestError, LoopCalls, as_json, read_number, read_one
from epp.explain.recorder import Recorder
from epp.framework.messages import quoted

PATH = "/api/decisions"
_SHOWN = 50
_MOST_SHOWN = 1000
_MOST_BYTES = 2 * 1024 * 1024
"""Of records in an answer: to copy more would hold up requests."""


def decision_routes(loop: LoopCalls, recorder: Recorder) -> tuple[web.RouteDef, ...]:
    """Return the routes; the recorder is of the loop."""

    async def latest(request: web.Request) -> web.Response:
        """Answer with the latest records, newest first."""
        limit = read_number(request, "limit", _SHOWN, least=1, most=_MOST_SHOWN)
        (at, after), request_id = _since(request), read_one(request, "request")

        def found() -> tuple[list[bytes], dict[str, object]]:
            records = recorder.ring.latest(limit, since=at, after=after, request_id=request_id, most_bytes=_MOST_BYTES)
            return records, {"recorded": dict(recorder.recorded), "lost": dict(recorder.lost)}

        records, counts = await loop.call(found)
        return as_json({"decisions": [Raw(record) for record in records], **counts})

    async def one(request: web.Request) -> web.Response:
        """Answer with one record."""
        record_id = request.match_info["name"]
        found = await loop.call(lambda: recorder.ring.get(record_id))
        if found is None:
            message = f"no decision {quoted(record_id)} is kept: the latest are at {PATH}"
            raise AdminError(HTTPStatus.NOT_FOUND, "NotFound", message)
        return as_json(Raw(found))

    return web.get(PATH, latest), web.get(PATH + "/{name:.+}", one)


def _since(request: web.Request) -> tuple[float | None, str]:
    """Return the time of the query, None without one, and the id of a decision, empty without one."""
    text = read_one(request, "since")
    if ":" not in text:
        return None, text
    try:
        at = datetime.fromisoformat(text.replace(" ", "+"))  # a plus sign of a query is a blank
    except ValueError:
        raise BadAdminRequestError(
            f"since is {quoted(text)}: write a time such as 2026-01-31T12:00:00Z, or the id of a decision"
        ) from None
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp(), ""
