"""The gateway's subset hint: the only endpoints a pick may come from."""

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from epp.framework.arrays import Positions
from epp.framework.endpoint import Endpoint
from epp.framework.snapshot import Snapshot

_Addresses: TypeAlias = dict[str, list[int]]


@dataclass(frozen=True, slots=True)
class Subset:
    """Addresses in canonical form: `ip:port`, or an IP alone, which stands for all its ports."""

    addresses: frozenset[str]

    @classmethod
    def parse(cls, entries: Iterable[str]) -> "Subset":
        """Read a list of addresses, or of comma-separated lists; other text matches no endpoint."""
        parts = (part.strip() for entry in entries for part in entry.split(","))
        return cls(frozenset(_canonical(part) for part in parts if part))

    def narrow(self, snapshot: Snapshot, slots: Positions) -> Positions:
        """Return those of the slots whose endpoint is in the subset, in their order."""
        by_address = snapshot.endpoints.derive(_slots_by_address)
        allowed = [slot for address in self.addresses for slot in by_address.get(address, ())]
        return slots[np.isin(slots, np.array(allowed, dtype=np.intp))]


def _slots_by_address(endpoints: tuple[Endpoint | None, ...]) -> _Addresses:
    slots: _Addresses = {}
    for slot, endpoint in enumerate(endpoints):
        if endpoint is not None:
            slots.setdefault(endpoint.hostport, []).append(slot)
            slots.setdefault(str(ipaddress.ip_address(endpoint.address)), []).append(slot)
    return slots


def _canonical(text: str) -> str:
    """`[::1]:80`, `::1`, `1.2.3.4:80`, `1.2.3.4`: IPv6 in its shortest form, so that spellings do not matter."""
    host, port = text, ""
    if text.startswith("["):
        host, _, rest = text[1:].partition("]")
        port = rest.removeprefix(":")
    elif text.count(":") == 1:
        host, _, port = text.partition(":")
    try:
        ip = ipaddress.ip_address(host)
    except ValueError:
        return text
    if not port:
        return str(ip)
    return f"[{ip}]:{port}" if isinstance(ip, ipaddress.IPv6Address) else f"{ip}:{port}"
