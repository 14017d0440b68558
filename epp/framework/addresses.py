# SPDX-License-Identifier: Apache-2.0
"""Endpoint addresses as gateways and clients write them: `IP` for all ports, or `IP:port`, IPv6 then in brackets."""

from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address

import numpy as np

from epp.framework.arrays import Mask, Positions
from epp.framework.endpoint import Endpoint
from epp.framework.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Subset:
    """The endpoints among which to pick, by address in canonical form."""

    addresses: frozenset[str]

    @classmethod
    def parse(cls, entries: Iterable[str]) -> "Subset":
        """Read addresses, or comma-separated lists of them; malformed ones match no endpoint."""
        parts = (part.strip() for entry in entries for part in entry.split(","))
        return cls(frozenset(_canonical(part) for part in parts if part))

    def mask(self, snapshot: Snapshot, slots: Positions) -> Mask:
        """Mark those of the slots whose endpoint is in the subset."""
        by_address = snapshot.endpoints.derive(_slots_by_address)
        allowed = [slot for address in self.addresses for slot in by_address.get(address, ())]
        return np.isin(slots, np.array(allowed, dtype=np.intp))


def _slots_by_address(endpoints: tuple[Endpoint | None, ...]) -> dict[str, list[int]]:
    slots: dict[str, list[int]] = {}
    for slot, endpoint in enumerate(endpoints):
        if endpoint is not None:
            slots.setdefault(endpoint.hostport, []).append(slot)
            slots.setdefault(endpoint.hostport.rpartition(":")[0].strip("[]"), []).append(slot)
    return slots


def _canonical(text: str) -> str:
    """Return the address with IPv6 in its shortest form; a malformed one as it is."""
    host, port = text, ""
    if text.startswith("["):
        host, _, rest = text[1:].partition("]")
        port = rest.removeprefix(":")
    elif text.count(":") == 1:
        host, _, port = text.partition(":")
    try:
        ip = ip_address(host)
    except ValueError:
        return text
    if not port:
        return str(ip)
    return f"[{ip}]:{port}" if isinstance(ip, IPv6Address) else f"{ip}:{port}"
