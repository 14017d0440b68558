# SPDX-License-Identifier: Apache-2.0
"""Garbage collection of a process that runs for long."""

import gc

_YOUNG = 4_000
"""Net new objects between two collections; Python has 700. Requests leave no cycles, and need fewer while in flight."""
_MIDDLE = 1
"""Collections of the young before one of the middle generation; Python has 10. That one looks at what came since,
12,000 objects, for 2 or 3 ms: as a pool or a configuration changes, all of it may stay."""
_FULL = 250
"""Collections of the middle generation between two full ones; Python has 10."""


def collect_rarely() -> None:
    """Let collections of garbage, which stop the event loop, be rare and leave out imported modules."""
    gc.set_threshold(_YOUNG, _MIDDLE, _FULL)
    gc.freeze()


def freeze() -> None:
    """Leave all that exists now out of collections for good.

    Not after later changes of the configuration: what has been frozen is never collected again.
    """
    gc.collect()
    gc.freeze()
