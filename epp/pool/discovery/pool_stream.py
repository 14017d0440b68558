# SPDX-License-Identifier: Apache-2.0
"""Stream of the InferencePool that discovery reads."""

from collections.abc import Callable, Mapping

from epp.framework.plugin_status import InputProblem
from epp.kube.object_set import Delta
from epp.kube.objects.inference import InferencePool
from epp.kube.watched import Watched


class PoolStream:
    """The InferencePool in effect; none before `watched` is set, which is when discovery starts."""

    def __init__(self) -> None:
        self.watched: Watched[InferencePool] | None = None

    @property
    def objects(self) -> Mapping[str, InferencePool]:
        """By `namespace/name`; one at most."""
        return {} if self.watched is None else self.watched.objects

    @property
    def problems(self) -> tuple[InputProblem, ...]:
        """None: those of the pool are reported with its watch."""
        return ()

    def subscribe(self, listener: Callable[[Delta[InferencePool]], None]) -> Callable[[], None]:
        """Call `listener` after each change; return a function that ends that."""
        return _nothing if self.watched is None else self.watched.subscribe(listener)

    async def settled(self) -> None:
        """Wait until it is known whether there is a pool."""
        if self.watched is not None:
            await self.watched.settled()


def _nothing() -> None:
    """Do nothing: there is nothing to end."""
