# SPDX-License-Identifier: Apache-2.0
"""The rows of the campaign by name, in the order in which they run."""

from collections.abc import Awaitable, Callable, Mapping

import endings
import floods
import leaving
import pages
from scene import Campaign

ROWS: Mapping[str, Callable[[Campaign], Awaitable[None]]] = {
    "rapid-resets": floods.rapid_resets,
    "slow-writers": floods.slow_writers,
    "held-bodies": floods.held_bodies,
    "malformed": endings.malformed_streams,
    "random-endings": endings.random_endings,
    "endings-in-queue": endings.endings_in_queue,
    "large-page": pages.large_page,
    "adapter-lines": pages.adapter_lines,
    "one-line-page": pages.one_line,
    "half-open-scrapes": pages.half_open_scrapes,
    "leaving-clients": leaving.leaving_clients,
    "leaving-the-queue": leaving.leaving_the_queue,
    "endless-answers": leaving.endless_answers,
    "failing-open": leaving.failing_open,
}
IN_CI = tuple(ROWS)
