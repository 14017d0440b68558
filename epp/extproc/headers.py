# SPDX-License-Identifier: Apache-2.0
"""Headers and metadata that a gateway sends, and the client headers that the operator ignores."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Self, TypeAlias
from urllib.parse import unquote

from epp.extproc.wire import HeaderMap, Metadata
from epp.framework import Headers
from epp.framework import headers as known
from epp.routing.director import Subset

MOST_FIELDS = 1000
"""Most header fields of one message; Envoy's `max_headers_count` is 100 by default."""
MOST_BYTES = 256 * 1024
"""Most bytes of all header fields of one message; Envoy's `max_request_headers_kb` is 60 by default."""
_SHORT_BYTES = 4096
Network: TypeAlias = IPv4Network | IPv6Network
ALL = "all"
HEADER = "header:"
DECISION_RECORD_GROUP = "decision-record"
_NAME = re.compile(r"[a-z0-9!#$%&'*+.^_`|~-]+")
MOST_GATEWAYS = 1024


def read_headers(headers: HeaderMap) -> Headers:
    """Return the fields of a header message; bytes that are not UTF-8 are replaced."""
    fields = headers.headers
    found = {
        field.key.lower(): raw.decode("utf-8", "replace") if (raw := field.raw_value) else field.value
        for field in fields
    }
    if len(found) == len(fields):
        return Headers.unique(found)
    return Headers((field.key, field.raw_value.decode("utf-8", "replace") or field.value) for field in fields)


def read_some(headers: HeaderMap, names: frozenset[str]) -> dict[str, str]:
    """Return the first value of each of these names that is present."""
    found: dict[str, str] = {}
    for field in headers.headers:
        name = field.key.lower()
        if name in names and name not in found:
            raw = field.raw_value
            found[name] = raw.decode("utf-8", "replace") if raw else field.value
    return found


def are_too_large(headers: HeaderMap) -> bool:
    """Whether the fields exceed `MOST_FIELDS` or `MOST_BYTES`."""
    return len(headers.headers) > MOST_FIELDS or headers.ByteSize() > MOST_BYTES


def read_first(headers: HeaderMap) -> Headers:
    """Return the first 1,000 fields, without those larger than 4 KiB."""
    first = headers.headers[:MOST_FIELDS]
    short = [field for field in first if len(field.key) + len(field.raw_value) + len(field.value) <= _SHORT_BYTES]
    return read_headers(HeaderMap(headers=short))


def read_subset(metadata: Metadata) -> Subset | None:
    """Return the subset hint (a list or a comma-separated string in the metadata), or None."""
    namespace = metadata.filter_metadata
    if known.SUBSET_NAMESPACE not in namespace:
        return None
    fields = namespace[known.SUBSET_NAMESPACE].fields
    if known.SUBSET not in fields:
        return None
    value = fields[known.SUBSET]
    if value.WhichOneof("kind") == "list_value":
        return Subset.parse(item.string_value for item in value.list_value.values)
    return Subset.parse([value.string_value])


def read_served(metadata: Metadata) -> str | None:
    """Return the address that the gateway reports as used; None without a report."""
    namespace = metadata.filter_metadata
    if known.DESTINATION_NAMESPACE not in namespace:
        return None
    fields = namespace[known.DESTINATION_NAMESPACE].fields
    return fields[known.DESTINATION_SERVED].string_value or None if known.DESTINATION_SERVED in fields else None


@dataclass(frozen=True, slots=True)
class Group:
    """Headers that are ignored together."""

    names: tuple[str, ...]
    """Names as in `epp.framework.headers`; one that ends in `-` is a prefix."""
    power: str
    """Influence that the headers give to a client."""


GROUPS: Mapping[str, Group] = {
    "model-rewrite": Group(
        known.MODEL_REWRITE,
        "Request any model that an endpoint serves, past a gateway's rules for the model in the body. A rule of an "
        "InferenceModelRewrite has precedence.",
    ),
    "objective": Group(
        known.OBJECTIVE,
        "Take the priority of any InferenceObjective, and with it precedence in queues and on hardware. The plugin "
        "`tenants` limits it (`highestPriority`).",
    ),
    "fairness-id": Group(
        known.FAIRNESS_ID,
        "Queue as any flow, or as a new flow with every request to get several shares. With API keys, the plugin "
        "`tenants` determines the flow.",
    ),
    "session": Group(
        (known.SESSION_ID, *known.AGENT_SESSIONS, known.SESSION_TOKEN),
        "Stay at one endpoint, which a client with a token chooses; with `agent-identity`, queue as any flow. Only if "
        "plugins read sessions.",
    ),
    "slo": Group(
        (*known.SLO_TTFT_MS, *known.SLO_TPOT_MS), "Request endpoints that are fast enough, if plugins read targets."
    ),
    "accelerator": Group(
        (known.ACCELERATOR_PREFIX,),
        "Choose the hardware within the bounds of the configuration and of objects, if `allowRequestOverrides` of "
        "`accelerator-selection-producer` allows it.",
    ),
    "profile": Group((known.PROFILE.lower(),), "Choose among the profiles of `header-profile-handler`, if it is used."),
    "video": Group(
        (known.VIDEO_FPS, known.VIDEO_DURATION, known.VIDEO_RESOLUTION),
        "Make videos count for fewer tokens than they have.",
    ),
    "prefer": Group(
        (known.PREFER,), "Get 412 unless an endpoint holds its KV cache, and so find out the prompts of others."
    ),
    "attempt-count": Group(
        (known.ATTEMPT_COUNT,),
        "End an unanswered request with the same id, path, flow, model and prompt with 503. If it is ignored, a second "
        "attempt of a gateway counts as a separate request.",
    ),
    "request-id": Group(
        (known.REQUEST_ID,),
        "Give several requests the same id in logs, or use the id of another client. Ids of gateways are replaced too.",
    ),
    DECISION_RECORD_GROUP: Group(
        (known.DECISION_RECORD,), "Record the decision. Only gateways of `--trusted-gateways` may send it."
    ),
    "trace-context": Group(
        known.TRACE_CONTEXT,
        "Record all requests in traces, also under the ids of other clients' traces, if an exporter is set. If it is "
        "ignored, traces of upstream gateways end here, except for the calling gateway if it traces requests.",
    ),
    "endpoint-selection": Group(
        (known.ENDPOINT_SELECTION,),
        "Choose the endpoint, if `header-based-testing-filter` is used, which is for tests.",
    ),
}


class IgnoredHeaders:
    """Client headers to remove from requests, unless a trusted gateway sends them."""

    def __init__(self, spellings: known.Spellings, trusted: Sequence[Network] = ()) -> None:
        self._spellings = spellings
        self.trusts = lru_cache(MOST_GATEWAYS)(partial(_is_within, networks=trusted))
        """Returns whether the gateway of a host is trusted; the host is in gRPC's format: `ipv4:10.0.0.1`."""

    @classmethod
    def parse(cls, names: Sequence[str]) -> Self:
        """Parse names of groups, `all` and `header:NAME`; raises ValueError."""
        return cls(_spellings(names))

    def except_from(self, gateways: Sequence[str]) -> "IgnoredHeaders":
        """Return a copy that trusts gateways of these networks; raises ValueError."""
        return IgnoredHeaders(self._spellings, tuple(_network(text) for text in gateways))

    def left_out(self, headers: Headers) -> tuple[Headers, Sequence[str]]:
        """Return the headers without the ignored ones, and the names of the ignored ones."""
        names = self._spellings.among(headers)
        if not names:
            return headers, ()
        ignored = frozenset(names)
        return Headers(field for field in headers.fields() if field[0] not in ignored), names


def group_of(name: str) -> str:
    """Return the name of the group of a header; empty for none."""
    return next((group for group, each in GROUPS.items() if name.lower() in each.names), "")


def _spellings(names: Sequence[str]) -> known.Spellings:
    whole: list[str] = []
    beginnings: list[str] = []
    for name in names:
        if name.startswith(HEADER):
            whole.append(_header(name.removeprefix(HEADER).lower()))
        else:
            for found in _named(name):
                (beginnings if found.endswith("-") else whole).append(found)
    return known.Spellings(whole, beginnings)


def _named(name: str) -> Sequence[str]:
    if name == ALL:
        return [found for group in GROUPS.values() for found in group.names]
    if name not in GROUPS:
        raise ValueError(f"{name!r} is not a group of headers: write {', '.join(GROUPS)}, {ALL} or {HEADER}NAME")
    return GROUPS[name].names


def _header(name: str) -> str:
    if not _NAME.fullmatch(name) or name in (known.CONTENT_LENGTH, "content-type", "host"):
        raise ValueError(f"{HEADER}{name} cannot be ignored: write the name of a header that a plugin reads")
    return name


def _network(text: str) -> Network:
    try:
        return ip_network(text)
    except ValueError as error:
        raise ValueError(
            f"{text!r} is not a network: {str(error).removeprefix(repr(text)).strip()}; write one like 10.0.0.0/8, or "
            "an IP address"
        ) from error


def _is_within(host: str, networks: Sequence[Network]) -> bool:
    text = unquote(host).partition(":")[2].strip("[]").partition("%")[0]
    try:
        address = ip_address(text)
    except ValueError:  # a unix socket
        return False
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return any(address in network for network in networks)
