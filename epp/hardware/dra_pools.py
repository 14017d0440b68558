# SPDX-License-Identifier: Apache-2.0
"""Pools of devices, assembled from ResourceSlices: the newest generation, or the last complete one."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from typing import NamedTuple

import msgspec

from epp.kube.objects.core import Taint
from epp.kube.objects.dra import AllocatedDevice, DeviceTaintRule, ResourceSlice, SliceDevice


class PoolName(NamedTuple):
    """Identity of a pool."""

    driver: str
    pool: str


class DevicePool(msgspec.Struct, frozen=True, kw_only=True):
    """Devices of one driver, usually on one node."""

    name: PoolName
    generation: int
    devices: Mapping[str, SliceDevice]
    """By name."""
    nodes: Mapping[str, str]
    """Node by device; empty for a device that is not on a single node."""
    counters: Mapping[tuple[str, str], Fraction]
    """Shared amounts, by counter set and counter."""
    complete: bool = True
    stale: bool = False
    """Whether a newer, incomplete generation exists."""


def device_pools(
    slices: Iterable[ResourceSlice], previous: Mapping[PoolName, DevicePool], wanted: frozenset[PoolName]
) -> dict[PoolName, DevicePool]:
    """Return the pools; a pool of `previous` replaces an incomplete one, and a removed one in `wanted`.

    `wanted` are the pools with allocated devices.
    """
    by_pool: defaultdict[PoolName, list[ResourceSlice]] = defaultdict(list)
    for each in slices:
        by_pool[PoolName(each.driver, each.pool)].append(each)
    pools = {name: _pool(name, members, previous.get(name)) for name, members in by_pool.items()}
    for name in wanted - pools.keys():
        if name in previous:
            pools[name] = msgspec.structs.replace(previous[name], stale=True)
    return pools


def _pool(name: PoolName, slices: list[ResourceSlice], before: DevicePool | None) -> DevicePool:
    generations = sorted({each.generation for each in slices}, reverse=True)
    candidates = [_assembled(name, [each for each in slices if each.generation == number]) for number in generations]
    newest = candidates[0]
    if newest.complete:
        return newest
    if before is not None and before.complete and before.generation <= newest.generation:
        candidates.append(before)
    complete = max((each for each in candidates if each.complete), key=lambda each: each.generation, default=newest)
    return msgspec.structs.replace(complete, stale=True)


def _assembled(name: PoolName, slices: list[ResourceSlice]) -> DevicePool:
    devices = {device.name: device for each in slices for device in each.devices}
    return DevicePool(
        name=name,
        generation=slices[0].generation,
        devices=devices,
        nodes={device.name: device.node_name or each.node_name for each in slices for device in each.devices},
        counters={
            (shared.name, counter): amount.value
            for each in slices
            for shared in each.shared_counters
            for counter, amount in shared.counters.items()
        },
        complete=len(slices) == slices[0].slices,
    )


def taints_of(result: AllocatedDevice, device: SliceDevice | None, rules: Iterable[DeviceTaintRule]) -> Iterator[Taint]:
    """Yield the taints of a device, including those of rules."""
    if device is not None:
        yield from device.taints
    for rule in rules:
        wanted = ((rule.driver, result.driver), (rule.pool, result.pool), (rule.device, result.device))
        if all(want in {"", have} for want, have in wanted):
            yield rule.taint
