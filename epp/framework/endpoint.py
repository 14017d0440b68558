# SPDX-License-Identifier: Apache-2.0
"""Endpoints, which are routable model-server addresses with labels, and label selectors as in Kubernetes."""

import ipaddress
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from epp.framework.accelerators.tag import AcceleratorDeclaration

_PORTS = range(1, 65536)


@dataclass(frozen=True, slots=True)
class EndpointTrust:
    """Verification of the certificates of HTTPS endpoints, the same in a gateway and its picker."""

    ca_file: Path | None = None
    """PEM file with certificate authorities; None for those of the system."""
    verify: bool = True


class PagePlace(NamedTuple):
    """Address of a page of an endpoint."""

    address: str
    """IP address, or a host name that is not resolved yet."""
    port: int
    host: str = ""
    """Host name that was resolved to `address`; empty if an IP address was given."""

    def __str__(self) -> str:
        address = f"[{self.address}]" if ":" in self.address else self.address
        return f"{self.host or address}:{self.port}"


class Identity(NamedTuple):
    """Identity of an endpoint; everything learned about the endpoint is dropped when it changes."""

    id: str
    hostport: str
    uid: str = ""
    boot_id: str = ""

    def is_another_than(self, before: "Identity") -> bool:
        """Return whether this is another endpoint than `before`; an unknown uid or boot id counts as the same."""
        return (
            self[:2] != before[:2]
            or (self.uid != before.uid and "" not in {self.uid, before.uid})
            or (self.boot_id != before.boot_id and "" not in {self.boot_id, before.boot_id})
        )

    def after(self, before: "Identity") -> "Identity":
        """Return this identity with missing ids from `before`, because a source may lose a node for a while."""
        return self._replace(uid=self.uid or before.uid, boot_id=self.boot_id or before.boot_id)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An endpoint as discovered; its reported data are in columns of snapshots."""

    name: str
    """Unique within the namespace."""
    address: str
    """An IPv4 or IPv6 literal, as original-destination clusters of gateways require."""
    port: int
    namespace: str = "default"
    labels: Mapping[str, str] = field(default_factory=dict, hash=False)
    host: str = ""
    """Host name that was resolved to `address`; empty if an IP address was given."""
    node: str = ""
    """Name of its node; empty if unknown."""
    cluster: str = ""
    """Name of its cluster; empty for the local one."""
    accelerator: AcceleratorDeclaration | None = None
    """Hardware declared in the endpoint list."""
    tls: bool = False
    """Whether it uses HTTPS."""
    uid: str = ""
    """UID of its pod, which changes when another pod with the same name replaces it; empty if unknown."""
    boot_id: str = ""
    """Boot ID of its node, which changes when the node restarts; empty if unknown."""
    node_address: str = ""
    """IP address of its node; empty if unknown."""
    metrics: PagePlace | None = None
    """Address of its metrics page; None for the address of the endpoint itself."""
    hostport: str = field(init=False, compare=False)
    """`ip:port`, IPv6 in brackets: the form of the destination header."""
    id: str = field(init=False, compare=False)
    identity: Identity = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
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

    def __reduce__(self) -> tuple[object, ...]:
        # a mapping proxy cannot be pickled
        given = {each.name: getattr(self, each.name) for each in fields(self) if each.init}
        return partial(Endpoint, **{**given, "labels": dict(self.labels)}), ()


_NAME = r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_DOMAIN = r"[a-z0-9](?:[-a-z0-9.]{0,251}[a-z0-9])?"
_KEY = rf"(?:{_DOMAIN}/)?{_NAME}"
_VALUE = rf"(?:{_NAME})?"
_BETWEEN_REQUIREMENTS = re.compile(r",(?![^(]*\))")
_EXISTS = re.compile(rf"(?P<operator>!?)\s*(?P<key>{_KEY})")
_COMPARISON = re.compile(rf"(?P<key>{_KEY})\s*(?P<operator>==|=|!=)\s*(?P<values>{_VALUE})")
_SET = re.compile(rf"(?P<key>{_KEY})\s+(?P<operator>in|notin)\s*\((?P<values>\s*{_VALUE}\s*(?:,\s*{_VALUE}\s*)*)\)")
_ORDER = re.compile(rf"(?P<key>{_KEY})\s*(?P<operator>[<>])\s*(?P<values>-?\d{{1,18}})")
_FORMS = (_EXISTS, _COMPARISON, _SET, _ORDER)
_WHOLE_NUMBER = re.compile(r"-?\d{1,18}")


@dataclass(frozen=True, slots=True)
class Requirement:
    key: str
    operator: str
    values: tuple[str, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        return _TESTS[self.operator](labels.get(self.key), self.values)

    def __str__(self) -> str:
        if self.operator in {"in", "notin"}:
            return f"{self.key} {self.operator} ({','.join(self.values)})"
        return f"{self.key}{self.operator}{self.values[0]}" if self.values else f"{self.operator}{self.key}"


def _compared(label: str | None, bound: str) -> int:
    """Return -1 or 1 if the label is less or greater than the bound; 0 if equal, or not a number."""
    if label is None or not _WHOLE_NUMBER.fullmatch(label):
        return 0
    return (int(label) > int(bound)) - (int(label) < int(bound))


_TESTS: Mapping[str, Callable[[str | None, tuple[str, ...]], bool]] = MappingProxyType(
    {
        "": lambda label, _: label is not None,
        "!": lambda label, _: label is None,
        "=": lambda label, values: label in values,
        "==": lambda label, values: label in values,
        "in": lambda label, values: label in values,
        "!=": lambda label, values: label not in values,
        "notin": lambda label, values: label not in values,
        ">": lambda label, values: _compared(label, values[0]) > 0,
        "<": lambda label, values: _compared(label, values[0]) < 0,
    }
)
"""Tests by operator, given the label (None if missing) and the values."""


@dataclass(frozen=True, slots=True)
class LabelSelector:
    """Label requirements, which must all match; without requirements, everything matches."""

    requirements: tuple[Requirement, ...] = ()

    @classmethod
    def parse(cls, text: str) -> "LabelSelector":
        """Parse a selector; raises ValueError for malformed text."""
        if not text.strip():
            return cls()
        return cls(tuple(_requirement(part.strip(), text) for part in _BETWEEN_REQUIREMENTS.split(text)))

    @classmethod
    def of(cls, labels: Mapping[str, str]) -> "LabelSelector":
        """Return the selector of exactly these labels."""
        return cls(tuple(Requirement(key, "=", (value,)) for key, value in sorted(labels.items())))

    def __str__(self) -> str:
        return ",".join(map(str, self.requirements))

    def matches(self, labels: Mapping[str, str]) -> bool:
        return all(requirement.matches(labels) for requirement in self.requirements)


def _requirement(part: str, text: str) -> Requirement:
    found = next(filter(None, (form.fullmatch(part) for form in _FORMS)), None)
    if found is None:
        raise ValueError(
            f"{text!r} is not a label selector, because of {part!r}: write key=value, key!=value, key in (a, b), "
            "key notin (a, b), key or !key, separated by commas"
        )
    groups = found.groupdict()
    values = groups.get("values")
    return Requirement(
        groups["key"], groups["operator"], () if values is None else tuple(map(str.strip, values.split(",")))
    )
