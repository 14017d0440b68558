# SPDX-License-Identifier: Apache-2.0
"""One routable model-server address with its tags."""

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from epp.framework.accelerators.tag import AcceleratorDeclaration

_PORTS = range(1, 65536)


@dataclass(frozen=True, slots=True)
class EndpointTrust:
    """How a gateway and its picker verify the certificates of HTTPS endpoints: alike."""

    ca_file: Path | None = None
    """PEM file with the certificate authorities; None for those of the system."""
    verify: bool = True


class Identity(NamedTuple):
    """What makes an endpoint the same as before; whatever is learned of an endpoint ends with it."""

    id: str
    """`namespace/name`."""
    hostport: str
    uid: str = ""
    boot_id: str = ""

    def is_another_than(self, before: "Identity") -> bool:
        """Return whether nothing learned of `before` holds; an unknown uid or boot id counts as the same."""
        return (
            self[:2] != before[:2]
            or (self.uid != before.uid and "" not in {self.uid, before.uid})
            or (self.boot_id != before.boot_id and "" not in {self.boot_id, before.boot_id})
        )

    def after(self, before: "Identity") -> "Identity":
        """Return this identity with what only `before` knows: a source may lose sight of a node for a while."""
        return self._replace(uid=self.uid or before.uid, boot_id=self.boot_id or before.boot_id)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One endpoint as discovery found it; its reports are in snapshot columns."""

    name: str
    """Unique within the namespace."""
    address: str
    """An IPv4 or IPv6 literal, as original-destination clusters of gateways require."""
    port: int
    namespace: str = "default"
    labels: Mapping[str, str] = field(default_factory=dict, hash=False)
    host: str = ""
    """The name that `address` was resolved from; empty when a literal was given."""
    node: str = ""
    """Name of the node it runs on; empty for unknown."""
    cluster: str = ""
    """Name of the cluster it runs in; empty for the local one."""
    accelerator: AcceleratorDeclaration | None = None
    """Hardware as the endpoint list declares it."""
    tls: bool = False
    """Whether it speaks HTTPS."""
    uid: str = ""
    """UID of its pod, which changes when a pod of the same name takes its place; empty for unknown."""
    boot_id: str = ""
    """Boot ID of its node, which changes when that starts again; empty for unknown."""
    hostport: str = field(init=False, compare=False)
    """`ip:port`, IPv6 in brackets: the form of the destination header."""
    id: str = field(init=False, compare=False)
    """`namespace/name`."""
    identity: Identity = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        """Check the address, derive `hostport`, `id` and `identity`, and copy the labels; raises ValueError."""
        try:
            ip = ipaddress.ip_address(self.address)
        except ValueError:
            raise ValueError(f"endpoint {self.name!r}: address {self.address!r} is not an IP address") from None
        if self.port not in _PORTS:
            raise ValueError(f"endpoint {self.name!r}: port {self.port} is not between 1 and 65535")
        hostport = f"[{ip}]:{self.port}" if isinstance(ip, ipaddress.IPv6Address) else f"{ip}:{self.port}"
        object.__setattr__(self, "labels", MappingProxyType(dict(self.labels)))
        object.__setattr__(self, "hostport", hostport)
        object.__setattr__(self, "id", f"{self.namespace}/{self.name}")
        object.__setattr__(self, "identity", Identity(self.id, hostport, self.uid, self.boot_id))
