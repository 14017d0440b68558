# SPDX-License-Identifier: Apache-2.0
"""The routes of several pools on one admin port: those of each pool are below `/pools/NAME`."""

from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from typing import TypeAlias, cast

from aiohttp import web

from epp.admin.answers import AdminError, as_json
from epp.runtime.http_server import Handler

_PREFIX = "/pools"
_POOL = "pool"

Routes: TypeAlias = Mapping[str, Sequence[web.RouteDef]]
"""The routes of each pool, by its name."""


def routes_of_pools(like: Sequence[web.RouteDef], pools: Callable[[], Routes]) -> Sequence[web.RouteDef]:
    """Return the routes of all pools that there will be; `like` are those of one, as all pools have the same.

    `pools` returns the pools of that moment; called in any thread.
    """

    def find(route: web.RouteDef) -> Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            name, known = request.match_info[_POOL], pools()
            for each in known.get(name, ()):
                if (each.method, each.path) == (route.method, route.path):
                    return await cast("Handler", each.handler)(request)
            text = f"no pool {name!r} is served here: see {_PREFIX}"
            raise AdminError(HTTPStatus.NOT_FOUND, "NotFound", text)

        return handle

    async def names(_request: web.Request) -> web.Response:
        return as_json({"pools": sorted(pools())})

    below = [web.RouteDef(each.method, f"{_PREFIX}/{{{_POOL}}}{each.path}", find(each), each.kwargs) for each in like]
    return [web.get(_PREFIX, names), *below]


def path_in_pool(path: str) -> str:
    """Return the path without the prefix of a pool."""
    if not path.startswith(f"{_PREFIX}/"):
        return path
    _, slash, rest = path.removeprefix(f"{_PREFIX}/").partition("/")
    return f"{slash}{rest}"
