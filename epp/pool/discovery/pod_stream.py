# SPDX-License-Identifier: Apache-2.0
"""Stream of the pods that discovery selects."""

import asyncio
from collections.abc import Callable, Mapping

from epp.framework.plugin_status import InputProblem
from epp.kube.object_set import Delta
from epp.kube.objects.core import Pod
from epp.kube.watched import Watched


class PodStream:
    """The pods in effect, whichever watch they come from: a pool may select others."""

    def __init__(self) -> None:
        self.objects: dict[str, Pod] = {}
        """By `namespace/name`."""
        self._pods: Watched[Pod] | None = None
        self._settled = asyncio.Event()
        self._listeners: list[Callable[[Delta[Pod]], None]] = []

    @property
    def problems(self) -> tuple[InputProblem, ...]:
        """Pods whose newest version is not in effect."""
        return () if self._pods is None else self._pods.problems

    def subscribe(self, listener: Callable[[Delta[Pod]], None]) -> Callable[[], None]:
        """Call `listener` after each change; return a function that ends that."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    async def settled(self) -> None:
        """Wait until pods were selected, or there is no pool to select any."""
        await self._settled.wait()

    def replace(self, pods: Watched[Pod] | None) -> None:
        """Take all pods from another watch, or have none."""
        self._pods = pods
        now: Mapping[str, Pod] = {} if pods is None else pods.objects
        changed = {name: pod for name, pod in now.items() if self.objects.get(name) != pod}
        self._settled.set()
        self.apply(Delta(changed, tuple(name for name in self.objects if name not in now)))

    def apply(self, delta: Delta[Pod]) -> None:
        """Apply a change of the watch and notify listeners."""
        self.objects.update(delta.changed)
        for name in delta.removed:
            self.objects.pop(name, None)
        for listener in tuple(self._listeners):
            listener(delta)
