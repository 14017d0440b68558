# SPDX-License-Identifier: Apache-2.0
"""Headers with which clients steer the picker, and the ones that the operator ignores."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Self, TypeAlias
from urllib.parse import unquote

from epp.framework import Headers
from epp.framework.headers import (
    ACCELERATOR_PREFIX,
    AGENT_SESSIONS,
    ATTEMPT_COUNT,
    CONTENT_LENGTH,
    DECISION_RECORD,
    ENDPOINT_SELECTION,
    FAIRNESS_ID,
    MODEL_REWRITE,
    OBJECTIVE,
    PREFER,
    PROFILE,
    REQUEST_ID,
    SESSION_ID,
    SESSION_TOKEN,
    SLO_TPOT_MS,
    SLO_TTFT_MS,
    TRACE_CONTEXT,
    VIDEO_DURATION,
    VIDEO_FPS,
    VIDEO_RESOLUTION,
    Spellings,
)

Network: TypeAlias = IPv4Network | IPv6Network

ALL = "all"
HEADER = "header:"
DECISION_RECORD_GROUP = "decision-record"
_NAME = re.compile(r"[a-z0-9!#$%&'*+.^_`|~-]+")
_MOST_GATEWAYS = 1024


@dataclass(frozen=True, slots=True)
class Group:
    """Headers that are ignored together."""

    names: tuple[str, ...]
    """As `epp.framework.headers` has them; one that ends in `-` begins names."""
    power: str
    """What a client can do with them."""


GROUPS: Mapping[str, Group] = {
    "model-rewrite": Group(
        MODEL_REWRITE,
        "Ask for any model that an endpoint serves, past a gateway's rules for the model in the body. A rule of an "
        "InferenceModelRewrite goes before it.",
    ),
    "objective": Group(
        OBJECTIVE,
        "Take the priority of any InferenceObjective, and with it room and hardware before others. The plugin "
        "`tenants` bounds it (`highestPriority`).",
    ),
    "fairness-id": Group(
        FAIRNESS_ID,
        "Queue as any flow, or as a new one with every request, for more than one share. With API keys, the plugin "
        "`tenants` decides the flow.",
    ),
    "session": Group(
        (SESSION_ID, *AGENT_SESSIONS, SESSION_TOKEN),
        "Stay at one endpoint, of its own choice with a token; with `agent-identity`, queue as any flow. Only where "
        "plugins read sessions.",
    ),
    "slo": Group((*SLO_TTFT_MS, *SLO_TPOT_MS), "Ask for endpoints that are fast enough, where plugins read targets."),
    "accelerator": Group(
        (ACCELERATOR_PREFIX,),
        "Choose the hardware, where `allowRequestOverrides` of `accelerator-selection-producer` allows it, within the "
        "bounds of the configuration and of objects.",
    ),
    "profile": Group((PROFILE.lower(),), "Choose among the profiles of `header-profile-handler`, where it is used."),
    "video": Group(
        (VIDEO_FPS, VIDEO_DURATION, VIDEO_RESOLUTION), "Make its videos count for fewer tokens than they are."
    ),
    "prefer": Group((PREFER,), "Be answered with 412 unless an endpoint holds its KV cache: ask what others asked."),
    "attempt-count": Group(
        (ATTEMPT_COUNT,),
        "End an unanswered request of the same id, path, flow, model and prompt with 503. Without it, a second attempt "
        "of a gateway counts as a request of its own.",
    ),
    "request-id": Group(
        (REQUEST_ID,),
        "Give several requests one name in logs, or that of a request of another. Ids of gateways are replaced too.",
    ),
    DECISION_RECORD_GROUP: Group(
        (DECISION_RECORD,), "Have its decision recorded. It counts from gateways of `--trusted-gateways` alone."
    ),
    "trace-context": Group(
        TRACE_CONTEXT,
        "Have its requests recorded in traces, all of them, where an exporter is set; and give them the ids of others' "
        "traces. Traces of gateways in front end here too, but for the one that calls, if it traces requests.",
    ),
    "endpoint-selection": Group(
        (ENDPOINT_SELECTION,),
        "Name the endpoint that serves it, where `header-based-testing-filter` is used, which is for tests.",
    ),
}
"""Groups by name."""


class IgnoredHeaders:
    """Headers that are read and passed on as if they had not come, unless they come from a trusted gateway."""

    __slots__ = ("_spellings", "_trusted", "_trusts")

    def __init__(self, spellings: Spellings, trusted: Sequence[Network] = ()) -> None:
        self._spellings = spellings
        self._trusted = trusted
        self._trusts: dict[str, bool] = {}

    @classmethod
    def parse(cls, names: Sequence[str]) -> Self:
        """Read names of groups, `all` and `header:NAME`; raises ValueError."""
        return cls(_spellings(names))

    def except_from(self, gateways: Sequence[str]) -> "IgnoredHeaders":
        """Return the same but for gateways of these networks, which are trusted; raises ValueError."""
        return IgnoredHeaders(self._spellings, tuple(_network(text) for text in gateways))

    def trusts(self, host: str) -> bool:
        """Return whether the headers of a gateway count; its host is as gRPC writes it: `ipv4:10.0.0.1`."""
        if not self._trusted:
            return False
        trusts = self._trusts.get(host)
        if trusts is None:
            if len(self._trusts) >= _MOST_GATEWAYS:
                self._trusts.clear()
            trusts = self._trusts[host] = _is_within(host, self._trusted)
        return trusts

    def left_out(self, headers: Headers) -> tuple[Headers, Sequence[str]]:
        """Return the headers without ignored ones, and the names of the ignored ones."""
        names = self._spellings.among(headers)
        if not names:
            return headers, ()
        ignored = frozenset(names)
        return Headers(field for field in headers.fields() if field[0] not in ignored), names


def group_of(name: str) -> str:
    """Return the name of the group of a header; empty for none."""
    return next((group for group, each in GROUPS.items() if name.lower() in each.names), "")


def _spellings(names: Sequence[str]) -> Spellings:
    whole: list[str] = []
    beginnings: list[str] = []
    for name in names:
        if name.startswith(HEADER):
            whole.append(_header(name.removeprefix(HEADER).lower()))
        else:
            for found in _named(name):
                (beginnings if found.endswith("-") else whole).append(found)
    return Spellings(whole, beginnings)


def _named(name: str) -> Sequence[str]:
    if name == ALL:
        return [found for group in GROUPS.values() for found in group.names]
    if name not in GROUPS:
        raise ValueError(f"{name!r} is no group of headers: write {', '.join(GROUPS)}, {ALL} or {HEADER}NAME")
    return GROUPS[name].names


def _header(name: str) -> str:
    if not _NAME.fullmatch(name) or name in (CONTENT_LENGTH, "content-type", "host"):
        raise ValueError(f"{HEADER}{name} is no header that can be left out: write the name of one that a plugin reads")
    return name


def _network(text: str) -> Network:
    try:
        return ip_network(text)
    except ValueError as error:
        raise ValueError(
            f"{text!r} is no network: {str(error).removeprefix(repr(text)).strip()}; write one such as 10.0.0.0/8 or "
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
