# SPDX-License-Identifier: Apache-2.0
"""Fleets for specific ready-made profiles."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import msgspec

from epp.lab.sim.profile import SimProfile
from perf.bench.profiles.fleets import FLEETS, Fleet, Server, fleet
from perf.bench.profiles.workloads import ADAPTERS

_RANGE = "llm-d.ai/context-length-range"
_LONGEST = 131_072
_SHORTEST = 8_192
_H100_DOLLARS = 4.25


def _context_ranges(name: str, short_model_len: int) -> Fleet:
    """Return eight A100: four labelled for short prompts, four for long ones."""
    servers = []
    for number, server in enumerate(fleet(name, a100=8).servers):
        length, label = (short_model_len, f"0-{_SHORTEST}") if number < 4 else (_LONGEST, f"{_SHORTEST}-{_LONGEST}")
        profile = msgspec.structs.replace(server.profile, max_model_len=length)
        servers.append(replace(server, profile=profile, labels={_RANGE: label}))
    return Fleet(name, tuple(servers))


def _many_adapters() -> Fleet:
    """Return six A100, each with room for four adapters, which take half a second to load."""
    found = fleet("many-adapters", a100=6)
    servers = [
        replace(
            server,
            profile=msgspec.structs.replace(server.profile, lora_adapters=ADAPTERS, max_lora=4, lora_load_seconds=0.5),
        )
        for server in found.servers
    ]
    return replace(found, servers=tuple(servers))


def _small_caches(name: str, blocks: int, host_blocks: int = 0) -> Fleet:
    """Return three A100 with this number of blocks in their caches and host memory, and four pickers."""
    found, sizes = fleet(name, a100=3), {"num_gpu_blocks": blocks, "num_host_blocks": host_blocks}
    servers = [replace(server, profile=msgspec.structs.replace(server.profile, **sizes)) for server in found.servers]
    return replace(found, servers=tuple(servers), pickers=4)


def _two_clusters() -> Fleet:
    """Return four local A100 and four in another cluster, 60 ms away."""
    found = fleet("two-clusters", a100=8)
    away = [replace(server, cluster="west", network_seconds=0.06) for server in found.servers[4:]]
    return replace(found, servers=(*found.servers[:4], *away))


# Slices of an H100 with 80 GB, computed like the presets of epp.lab.sim, with 8-bit weights.
_SLICES: Mapping[str, tuple[int, float, SimProfile]] = {
    "1g.20gb": (
        2,
        1 / 4,
        SimProfile(
            prefill_tokens_per_second=3_550.0,
            seconds_per_output_token=0.0136,
            batch_slope=0.017,
            max_num_seqs=128,
            num_gpu_blocks=4_000,
        ),
    ),
    "3g.40gb": (
        4,
        1 / 2,
        SimProfile(
            prefill_tokens_per_second=10_700.0,
            seconds_per_output_token=0.0068,
            batch_slope=0.017,
            max_num_seqs=256,
            num_gpu_blocks=13_000,
        ),
    ),
    "7g.80gb": (
        8,
        1.0,
        SimProfile(
            prefill_tokens_per_second=25_000.0,
            seconds_per_output_token=0.0034,
            batch_slope=0.017,
            num_gpu_blocks=30_000,
        ),
    ),
}
"""Memory slots, share of the memory, and speed by MIG profile."""
_CUTS: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "node-a": (("1g.20gb",) * 4, ("3g.40gb",) * 2),
    "node-b": (("1g.20gb",) * 4, ("3g.40gb",) * 2),
    "node-c": (("1g.20gb",) * 2, ("3g.40gb",)),
    "node-d": (("7g.80gb",), ("3g.40gb",)),
}
"""Slices on the two GPUs of each node; the last two nodes have free room."""


def _slices() -> Fleet:
    """Return servers on slices of eight H100 of four nodes, and the objects of InstaSlice that describe them."""
    servers, claims = [], []
    for node, gpus in _CUTS.items():
        for index, profiles in enumerate(gpus):
            gpu, start = f"GPU-{node}-{index}", 0
            for number, profile in enumerate(profiles):
                slots, share, speed = _SLICES[profile]
                name = f"{node}-{index}-{profile}-{number}"
                server = Server(
                    msgspec.structs.replace(speed, name=name, model="m"),
                    None,
                    _H100_DOLLARS * share,
                    node=node,
                    gpu=gpu,
                )
                servers.append(server)
                claims.append(_claim(server, profile, slots, start))
                start += slots
    objects = [*(_node(node, len(gpus)) for node, gpus in _CUTS.items()), *claims]
    return Fleet("slices", tuple(servers), objects="\n---\n".join(json.dumps(each) for each in objects))


def _node(name: str, gpus: int) -> dict[str, Any]:
    listed = [
        {"gpuUuid": f"GPU-{name}-{index}", "gpuName": "NVIDIA H100 80GB HBM3", "gpuMemory": "80Gi"}
        for index in range(gpus)
    ]
    return {
        "apiVersion": "inference.redhat.com/v1alpha1",
        "kind": "NodeAccelerator",
        "metadata": {"name": name, "namespace": "das-operator"},
        "status": {
            "conditions": [{"type": "Ready", "status": "True", "reason": "GPUsAccessible"}],
            "nodeResources": {"nodeGpus": listed},
        },
    }


def _claim(server: Server, profile: str, slots: int, start: int) -> dict[str, Any]:
    return {
        "apiVersion": "inference.redhat.com/v1alpha1",
        "kind": "AllocationClaim",
        "metadata": {"name": server.name, "namespace": "das-operator"},
        "spec": {
            "profile": profile,
            "podRef": {"kind": "Pod", "namespace": "default", "name": server.name},
            "migPlacement": {"size": slots, "start": start},
            "gpuUUID": server.gpu,
            "nodename": server.node,
        },
        "status": {"state": "inUse"},
    }


def _by_name(fleets: Iterable[Fleet]) -> Mapping[str, Fleet]:
    return MappingProxyType({each.name: each for each in fleets})


ALL_FLEETS = _by_name(
    (
        *FLEETS.values(),
        _context_ranges("context-ranges", _LONGEST),
        _context_ranges("short-contexts", _SHORTEST),
        _many_adapters(),
        _slices(),
        # shared prefixes, 10.7 requests per second: 10,300 blocks are used in 20 s
        _small_caches("full-caches", 3440),  # 100 % of the caches, at 70 % load
        _small_caches("crowded-caches", 2650),  # 130 %, at 83 % load
        _small_caches("full-caches-host", 3440, 2 * 3440),
        _small_caches("crowded-caches-host", 2650, 2 * 2650),
        _two_clusters(),
    )
)
"""All fleets by name, including those for any workload."""
