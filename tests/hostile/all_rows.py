# SPDX-License-Identifier: Apache-2.0
"""The rows of the campaign by name, in the order in which they run."""

from collections.abc import Awaitable, Callable, Mapping

import endings
import floods
from scene import Campaign

ROWS: Mapping[str, Callable[[Campaign], Awaitable[None]]] = {
    "rapid-resets": floods.rapid_resets,
    "slow-writers": floods.slow_writers,
    "held-bodies": floods.held_bodies,
    "malformed": endings.malformed_streams,
    "random-endings": endings.random_endings,
    "endings-in-queue": endings.endings_in_queue,
}
IN_CI = tuple(ROWS)
