# SPDX-License-Identifier: Apache-2.0
"""Runs attacks in a process of its own, after all others in turn: `{"module": ..., "attack": ..., "with": {...}}`.

So that neither what drives it, nor the client beside it, nor the picker waits for the attack's own work.
"""

import asyncio
import importlib
import os
from typing import Any

from rig.orders import many_descriptors, obey

_NICENESS = 5


async def attack(order: dict[str, Any]) -> dict[str, Any]:
    """Run the attack, a coroutine function, and return what it says."""
    module = importlib.import_module(order["module"])
    said: dict[str, Any] | None = await getattr(module, order["attack"])(**order["with"])
    return said or {}


if __name__ == "__main__":
    os.nice(_NICENESS)
    many_descriptors()
    asyncio.run(obey(attack))
