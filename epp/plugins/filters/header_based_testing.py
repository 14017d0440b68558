"""Keeps the endpoints that a test names in a request header."""

from ipaddress import IPv6Address, ip_address

import numpy as np

from epp.framework import Candidates, Endpoint, Filter, Mask, Request
from epp.framework.headers import ENDPOINT_SELECTION


class HeaderBasedTestingFilter(Filter):
    """Keeps the endpoints listed in the header `test-epp-endpoint-selection`, for tests of gateways.

    The header is a comma list of `IP` (all its ports) and `IP:port`; an IPv6 address with a port stands in brackets.
    What is no address matches nobody. All stay where a request has no such header, and nobody where none is listed:
    clients choose for themselves here, so it does not belong in production.
    """

    plugin_type = "header-based-testing-filter"

    def filter(self, request: Request, candidates: Candidates) -> Mask:
        lists = [value for name, value in request.headers.fields() if name == ENDPOINT_SELECTION]
        if not lists:
            return np.ones(len(candidates), dtype=np.bool_)
        slots_by_address = candidates.snapshot.endpoints.derive(_slots_by_address)
        entries = (entry.strip() for text in lists for entry in text.split(","))
        named = [slot for entry in entries for slot in slots_by_address.get(_canonical(entry), ())]
        return np.isin(candidates.slots, np.array(named, dtype=np.intp))


def _slots_by_address(endpoints: tuple[Endpoint | None, ...]) -> dict[str, list[int]]:
    slots: dict[str, list[int]] = {}
    for slot, endpoint in enumerate(endpoints):
        if endpoint is not None:
            slots.setdefault(str(ip_address(endpoint.address)), []).append(slot)
            slots.setdefault(endpoint.hostport, []).append(slot)
    return slots


def _canonical(entry: str) -> str:
    """Return `IP` or `IP:port` with IPv6 in its shortest spelling; what is neither stays as it is."""
    host, port = entry, ""
    if entry.startswith("["):
        host, _, rest = entry[1:].partition("]")
        port = rest.removeprefix(":")
    elif entry.count(":") == 1:
        host, _, port = entry.partition(":")
    try:
        ip = ip_address(host)
    except ValueError:
        return entry
    if not port:
        return str(ip)
    return f"[{ip}]:{port}" if isinstance(ip, IPv6Address) else f"{ip}:{port}"
