# SPDX-License-Identifier: Apache-2.0
"""Scores of free resources of nodes and of the cluster, by the formulas of OCM's resource-usage-collect add-on."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from fractions import Fraction

from epp.framework.clusters import MOST_SCORE
from epp.framework.plugin import Parameters
from epp.framework.quantities import exact_quantity
from epp.kube.objects.core import Container, Node, Pod
from epp.kube.objects.dra import ResourceClaim, ResourceSlice
from epp.kube.objects.limits import UNKNOWN_AMOUNT

_NO_NODE = ""


class UsageItem(Parameters, frozen=True):
    """Resources that are added up into two scores, `<name>NodeAvailable` and `<name>ClusterAvailable`."""

    resources: tuple[str, ...]
    """Names of resources; `*` matches any characters."""
    drivers: tuple[str, ...] = ()
    """DRA drivers whose devices are included."""
    max: str = "20"
    """Free amount with the score 100, a quantity such as `20` GPUs or `1Ti` of memory. No free amount scores -100."""

    def __post_init__(self) -> None:
        try:
            most = exact_quantity(self.max)
        except ValueError as error:
            raise ValueError(f"max: {error}") from None
        if most <= 0:
            raise ValueError(f"max is {self.max!r}: write a quantity above 0")


USAGE_ITEMS: Mapping[str, UsageItem] = {
    "cpu": UsageItem(resources=("cpu",), max="100"),
    "mem": UsageItem(resources=("memory",), max="1Ti"),
    "gpu": UsageItem(resources=("nvidia.com/gpu",), drivers=("gpu.nvidia.com",), max="20"),
    "tpu": UsageItem(resources=("google.com/tpu",), drivers=("tpu.google.com",), max="20"),
}
"""Items of the add-on, with additional DRA devices. The add-on counts whole NVIDIA GPUs, and its maximum of memory is
1,048,576 MiB."""


def usage_scores(
    nodes: Iterable[Node],
    pods: Iterable[Pod],
    slices: Iterable[ResourceSlice] = (),
    claims: Iterable[ResourceClaim] = (),
    items: Mapping[str, UsageItem] = USAGE_ITEMS,
) -> dict[str, float]:
    """Return the scores, -100..100, by name, for nodes that accept new pods; empty without such nodes."""
    able = {node.name: node for node in nodes if node.schedulable}
    if not able:
        return {}
    requested: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for pod in pods:
        if pod.spec.node_name in able and not pod.ended and not pod.metadata.is_terminating:
            for name, amount in pod_requests(pod).items():
                requested[pod.spec.node_name][name] += amount  # type: ignore[assignment]  # a Counter of fractions
    devices = _Devices(slices, claims)
    scores: dict[str, float] = {}
    for title, item in items.items():
        free = {
            name: _free(item, node, requested[name]) + devices.free(item.drivers, name) for name, node in able.items()
        }
        most = exact_quantity(item.max)
        scores[f"{title}NodeAvailable"] = normalised(max(free.values()), most)
        scores[f"{title}ClusterAvailable"] = normalised(sum(free.values()) + devices.free(item.drivers, _NO_NODE), most)
    return scores


def normalised(free: Fraction | int, most: Fraction) -> float:
    """Return a whole number from -100, for no free amount, to 100, for the maximum or more."""
    if free >= most:
        return MOST_SCORE
    return float(math.trunc(200 * max(free, 0) / most - 100))


def pod_requests(pod: Pod) -> dict[str, Fraction]:
    """Return the amounts that the scheduler reserves for a pod.

    This is the sum over containers and sidecars, or the larger amount of an init container and the sidecars that start
    before it. Requests of the whole pod replace both. The overhead is added.
    """
    running, starting, sidecars = Counter[str](), Counter[str](), Counter[str]()
    for container in pod.spec.containers:
        running.update(_amounts(container))
    for container in pod.spec.init_containers:
        if container.restart_policy == "Always":
            sidecars.update(_amounts(container))
        else:
            starting |= sidecars + _amounts(container)
    total = (running + sidecars) | starting
    whole = _known(pod.spec.resources.requests)
    total.update({name: whole[name] - total[name] for name in whole})
    total.update(_known(pod.spec.overhead))
    return {name: Fraction(amount) for name, amount in total.items()}


def _amounts(container: Container) -> Counter[str]:
    """Return requests; the default request is the limit."""
    return Counter({**_known(container.resources.limits), **_known(container.resources.requests)})


def _known(amounts: Mapping[str, Fraction]) -> dict[str, Fraction]:
    return {name: amount for name, amount in amounts.items() if amount != UNKNOWN_AMOUNT}


def _free(item: UsageItem, node: Node, requested: Mapping[str, int]) -> Fraction:
    """Return the free amount of the resources of an item on a node."""
    found = Fraction(0)
    for name, amount in node.allocatable.items():
        if amount > 0 and any(fnmatchcase(name, pattern) for pattern in item.resources):
            found += amount - requested.get(name, 0)
    return found


class _Devices:
    """DRA devices by driver and node; parts of the same hardware count once."""

    def __init__(self, slices: Iterable[ResourceSlice], claims: Iterable[ResourceClaim]) -> None:
        newest: dict[tuple[str, str], int] = {}
        slices = tuple(slices)
        for each in slices:
            pool = each.driver, each.pool
            newest[pool] = max(newest.get(pool, each.generation), each.generation)
        self._units: dict[str, tuple[str, str]] = {}
        """Driver and node by piece of hardware."""
        of_device: dict[str, set[str]] = {}
        for each in slices:
            if each.generation != newest[each.driver, each.pool]:
                continue
            for device in each.devices:
                name = f"{each.driver}/{each.pool}/{device.name}"
                counters = {f"{each.driver}/{each.pool}#{used.counter_set}" for used in device.consumes_counters}
                of_device[name] = counters or {name}  # counter sets of the device, or the device itself
                self._units.update(dict.fromkeys(of_device[name], (each.driver, device.node_name or each.node_name)))
        results = (result for claim in claims for result in claim.results if not result.admin_access)
        self._used = {unit for result in results for unit in of_device.get(result.id, ())}

    def free(self, drivers: Iterable[str], node: str) -> int:
        """Return the number of unused devices of the drivers on a node; `""` means devices without a node."""
        places = {(driver, node) for driver in drivers}
        return sum(place in places and unit not in self._used for unit, place in self._units.items())
