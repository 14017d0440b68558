# SPDX-License-Identifier: Apache-2.0
"""Pods of all namespaces on nodes without an endpoint, which have devices that would look idle otherwise."""

import asyncio
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any

import structlog

from epp.framework.plugin import Plugin
from epp.hardware.resources import resource_requests
from epp.hardware.tagger import AcceleratorTagger
from epp.kube.access import ApiError, ApiUnreachableError, KubeApi
from epp.kube.collection import list_objects
from epp.kube.objects.core import Pod
from epp.kube.objects.decode import decode_object
from epp.kube.objects.limits import sanitized
from epp.kube.resources import PODS

_MOST_NODES = 100
"""Nodes whose pods are listed in one round: one after the other, and those of more nodes in the next rounds."""
_ROUND_SECONDS = 60.0

_log = structlog.get_logger()


class IdleNodePods:
    """Lists the pods of such nodes from the cache of the API server, for taggers that ask for it."""

    def __init__(self, api: KubeApi, plugins: Callable[[], Iterable[Plugin[Any]]]) -> None:
        """Prepare; `plugins` returns those of the configuration in effect."""
        self._api = api
        self._plugins = plugins

    async def follow(self) -> None:
        """List pods until cancelled."""
        while True:
            for plugin in tuple(self._plugins()):
                if isinstance(plugin, AcceleratorTagger) and plugin.parameters.pods_on_idle_nodes:
                    await self.look(plugin)
            await asyncio.sleep(_ROUND_SECONDS)

    async def look(self, tagger: AcceleratorTagger) -> None:
        """Tell a tagger of the pods on some of its idle nodes: those that it was told of longest ago, or never."""
        names = [each.node for each in await asyncio.to_thread(tagger.idle_nodes)]
        before = tagger.pods_on_nodes
        known = {name: before[name] for name in before if name in set(names)}  # the oldest first
        problem = ""
        try:
            for name in list(islice((*(each for each in names if each not in known), *known), _MOST_NODES)):
                found = await self._pods_on(name)
                known.pop(name, None)
                known[name] = found
        except (ApiError, ApiUnreachableError) as error:
            problem = f"{error}: allow list of pods in all namespaces, or set podsOnIdleNodes to false"
            if problem != tagger.pods_problem:
                _log.warning("pods of other namespaces not read, their devices look idle", reason=problem)
        tagger.pods_on_nodes, tagger.pods_problem = known, problem

    async def _pods_on(self, node: str) -> tuple[Pod, ...]:
        fields = f"spec.nodeName={node},status.phase!=Succeeded,status.phase!=Failed"
        selector = {"fieldSelector": fields, "resourceVersion": "0"}
        items = await list_objects(self._api, PODS, decode_object, selector=selector)
        found = (sanitized(each.object)[0] for each in items if each.object is not None)
        return tuple(
            pod for pod in found if isinstance(pod, Pod) and any(each.known for each in resource_requests(pod))
        )
