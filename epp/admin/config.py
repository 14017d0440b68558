# SPDX-License-Identifier: Apache-2.0
"""The configuration in effect on the admin port, with all defaults, and rejected versions."""

from collections.abc import Callable

from epp.admin.answers import as_json
from epp.admin.loop_calls import LoopCalls
from epp.admin.routes import Route
from epp.config import Assembly, ConfigState
from epp.config.describe import describe
from epp.telemetry.http_request import HttpRequest
from epp.telemetry.http_thread import Answer

PATH = "/api/config"


def config_routes(
    loop: LoopCalls, assembly: Callable[[], Assembly], state: Callable[[], ConfigState]
) -> tuple[Route, ...]:
    """Return the route; the functions are called on the loop."""

    async def show(_request: HttpRequest, _rest: str) -> Answer:
        """Answer with the configuration."""
        now, stands = await loop.call(lambda: (assembly(), state()))
        return as_json(
            {
                "generation": stands.generation,
                "origin": now.loaded.origin,
                "refused": stands.refused or None,
                "warnings": [str(warning) for warning in now.warnings],
                "text": now.loaded.text or None,
                "graph": describe(now),
            }
        )

    return (Route("GET", PATH, show),)
