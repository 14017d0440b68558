# SPDX-License-Identifier: Apache-2.0
"""Runs attacks in a separate process with low priority: `{"module": ..., "attack": ..., "with": {...}}`.

The campaign, the client beside it and the picker then do not wait for the attack's own work.
"""

import asyncio
import importlib
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from perf.rig.orders import many_descriptors, obey

_NICENESS = 15
_OF_SESSION = Path("/proc/self/autogroup")


async def attack(order: dict[str, Any]) -> dict[str, Any]:
    """Run the attack, a coroutine function, and return its report."""
    module = importlib.import_module(f"perf.hostile.{order['module']}")
    said: dict[str, Any] | None = await getattr(module, order["attack"])(**order["with"])
    return said or {}


def _give_way() -> None:
    """Lower the priority of this process, also relative to other sessions, among which Linux may share the CPUs."""
    os.nice(_NICENESS)
    with suppress(OSError):  # it is a session leader
        os.setsid()
    with suppress(OSError):  # not on Linux, or without CPU shares of sessions
        _OF_SESSION.write_text(str(_NICENESS))


if __name__ == "__main__":
    _give_way()
    many_descriptors()
    asyncio.run(obey(attack))
