# SPDX-License-Identifier: Apache-2.0
"""Garbage collection of a process that runs for long."""

import gc

_YOUNG = 5_000
"""Net new objects between two collections; Python has 700. Requests leave no cycles, and need fewer while in flight."""
_MIDDLE = 2
"""Collections of the young between two of the middle generation; Python has 10. What these look at is what came since,
15,000 objects, a few milliseconds' work: as a pool or a configuration changes, all of it may stay."""
_FULL = 150
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
