# SPDX-License-Identifier: Apache-2.0
"""Fleets of simulated servers: machines, hardware labels and prices."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import msgspec

from epp.framework import Endpoint
from epp.framework.accelerators.tag import AcceleratorDeclaration
from epp.lab.replay import fleet as replayed
from epp.lab.sim.profile import PRESETS, SimProfile
from perf.bench.profiles.engines import MAKES, Independent

ROLE_LABEL = "llm-d.ai/role"

_H100 = AcceleratorDeclaration(accelerator_class="h100", count=1, cost_per_hour=4.25)
_A100 = AcceleratorDeclaration(accelerator_class="a100-40gb", count=1, cost_per_hour=2.00)
_HALF_A100 = AcceleratorDeclaration(accelerator_class="a100-40gb", count=1, profile="3g.20gb", cost_per_hour=2.00)
_T4 = AcceleratorDeclaration(accelerator_class="t4", count=1, cost_per_hour=0.53)
_HARDWARE: Mapping[str, tuple[AcceleratorDeclaration, float]] = {
    "h100": (_H100, 4.25),
    "a100": (_A100, 2.00),
    "a100-3g.20gb": (_HALF_A100, 1.00),  # half of the memory
    "t4": (_T4, 0.53),
}
"""Labels in an endpoint list, and dollars per hour, by preset."""


@dataclass(frozen=True)
class Server:
    """One simulated server."""

    profile: SimProfile
    declared: AcceleratorDeclaration | None
    """None if the hardware is unknown."""
    dollars_per_hour: float
    labels: Mapping[str, str] = field(default_factory=dict)
    node: str = ""
    gpu: str = ""
    """Device of its slice; empty for whole devices."""
    cluster: str = ""
    """Name of its cluster; empty for the local one."""
    network_seconds: float = 0.0
    """One-way network delay, in addition to the network of the local cluster."""

    @property
    def name(self) -> str:
        return self.profile.name


@dataclass(frozen=True)
class Fleet:
    """Servers of one model."""

    name: str
    servers: tuple[Server, ...]
    make: str = "vllm"
    objects: str = ""
    """Cluster objects that describe the fleet, as YAML."""
    pickers: int = 1
    """Number of pickers; each sees only its own requests."""
    page_seconds: float = 0.0
    """Time for which metrics pages are cached; 0 for no cache."""

    @property
    def endpoints(self) -> list[Endpoint]:
        """Entries of the servers in an endpoint list."""
        return [
            Endpoint(
                server.name,
                f"10.0.0.{number}",
                8000,
                labels=server.labels,
                node=server.node,
                cluster=server.cluster,
                accelerator=server.declared,
            )
            for number, server in enumerate(self.servers, 1)
        ]

    @property
    def simulated(self) -> replayed.Fleet:
        """Fleet of a replay."""
        make = MAKES[self.make].engine
        servers = (
            replayed.Server(
                endpoint, server.profile, server.dollars_per_hour, network_seconds=server.network_seconds, make=make
            )
            for endpoint, server in zip(self.endpoints, self.servers, strict=True)
        )
        return replayed.Fleet(tuple(servers))

    @property
    def independent(self) -> bool:
        """Whether requests do not slow each other down."""
        return MAKES[self.make].engine is Independent

    @property
    def is_virtual(self) -> bool:
        """Whether it requires virtual time, for roles, clusters, objects, pickers or cached pages."""
        parts = any(ROLE_LABEL in server.labels or server.cluster for server in self.servers)
        return parts or bool(self.objects) or self.pickers > 1 or self.page_seconds > 0

    def made(self, make: str) -> "Fleet":
        """Return the fleet with engines of this kind."""
        adapt = MAKES[make].adapt
        return replace(
            self, make=make, servers=tuple(replace(server, profile=adapt(server.profile)) for server in self.servers)
        )

    def slowed(self, factor: float) -> "Fleet":
        """Return the fleet with all durations multiplied."""
        slow = [
            replace(
                one,
                profile=msgspec.structs.replace(one.profile, time_scale=factor),
                network_seconds=one.network_seconds * factor,
            )
            for one in self.servers
        ]
        return replace(self, servers=tuple(slow))

    def with_roles(self, name: str, **counts: int) -> "Fleet":
        """Return the fleet with roles: of each preset, the first servers prefill and the others decode."""
        servers = []
        for server in self.servers:
            preset, _, number = server.name.rpartition("-")
            role = "prefill" if int(number) < counts.get(preset, 0) else "decode"
            servers.append(replace(server, labels={**server.labels, ROLE_LABEL: role}))
        return replace(self, name=name, servers=tuple(servers))

    def undeclared(self) -> "Fleet":
        """Return the fleet with unknown hardware."""
        return replace(self, servers=tuple(replace(server, declared=None) for server in self.servers))


def fleet(name: str, **counts: int) -> Fleet:
    """Return a fleet with a number of servers of each preset; `_` in a preset's name means `-`."""
    servers = []
    for key, count in counts.items():
        preset = {"slice": "a100-3g.20gb"}.get(key, key)
        declared, dollars = _HARDWARE[preset]
        for number in range(count):
            profile = msgspec.structs.replace(PRESETS[preset], name=f"{key}-{number}", model="m")
            servers.append(Server(profile, declared, dollars))
    return Fleet(name, tuple(servers))


FLEETS: Mapping[str, Fleet] = MappingProxyType(
    {
        each.name: each
        for each in (
            fleet("mixed", h100=2, a100=2, slice=2, t4=2),
            fleet("equal", a100=6),
            fleet("cheap", h100=1, t4=4),
            fleet("equal", a100=6).with_roles("split", a100=4),
            fleet("mixed", h100=2, a100=2, slice=2).with_roles("split-mixed", h100=2, a100=1),
            replace(fleet("shared", a100=6), pickers=8, page_seconds=15.0),
        )
    }
)
