# SPDX-License-Identifier: Apache-2.0
"""What a request remembers of flow control: how long it was in a queue, and how that ended."""

from typing import NamedTuple

from epp.flow_control.outcomes import Outcome
from epp.framework.request import DataKey


class Stay(NamedTuple):
    """Of requests that flow control has seen; the last one counts."""

    outcome: Outcome
    seconds: float
    """Time in a queue; 0 for a request that went at once, or was turned away."""

    @property
    def waited(self) -> bool:
        """Whether the request was in a queue, and has left it."""
        return self.seconds > 0.0 or self.outcome not in _WITHOUT_QUEUE


_WITHOUT_QUEUE = frozenset(
    {
        Outcome.NOT_YET_FINALIZED,
        Outcome.DISPATCHED,
        Outcome.REJECTED_CAPACITY,
        Outcome.REJECTED_NO_ENDPOINTS,
        Outcome.REJECTED_OTHER,
    }
)
AT_ONCE = Stay(Outcome.DISPATCHED, 0.0)
"""That of a request which was in no queue."""
WAITING = Stay(Outcome.NOT_YET_FINALIZED, 0.0)
"""That of a request which is in one."""
STAY: DataKey[Stay] = DataKey("queue-stay")
