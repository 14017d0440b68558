# SPDX-License-Identifier: Apache-2.0
"""Parameters of the plugin `tenants`, and API keys: digests, header values with keys, and files of keys.

No message shows the content of a file, since a file may have keys in place of tenants.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, TypeAlias

import yaml
from msgspec import Meta

from epp.framework import Name, Parameters, headers
from epp.framework.headers import AUTHORIZATION
from epp.framework.plain_yaml import YamlTextError, load
from epp.framework.quotas import Qos
from epp.framework.request import DEFAULT_FLOW
from epp.runtime.followed_files import ParsedFile

MAKE_DIGEST = "sha256: followed by the output of: printf %s KEY | sha256sum"
"""Remedy in messages about an invalid digest."""
MOST_NAME_LENGTH = 253

_MOST_KEY_LENGTH = 4096
"""Largest number of characters in a key; longer keys are not looked up."""
_MOST_FILE_BYTES = 4 * 1024 * 1024
"""Size of a file with 50,000 keys; a Kubernetes Secret has at most 1 MiB."""
_MOST_PROBLEMS = 20
_DEPTH_LIMIT = 4
_PREFIX = "sha256:"
_DIGEST = re.compile(r"sha256:([0-9a-fA-F]{64})")
_BEARER = re.compile(r"bearer +", re.IGNORECASE)
_FORM = "write a mapping from keys or their digests to tenants, such as sha256:<64 hexadecimal digits>: team-a"


class KeyTable(NamedTuple):
    tenants: Mapping[bytes, str]
    """Names of tenants by digest of a key."""
    lines: Mapping[str, int]
    """First line of each tenant."""


def digest_of(key: str) -> bytes | None:
    """Return the digest of a key; None if the key is too long."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest() if len(key) <= _MOST_KEY_LENGTH else None


def read_digest(text: str) -> bytes | None:
    """Parse a digest `sha256:<hex>`; return None for any other text."""
    found = _DIGEST.fullmatch(text)
    return None if found is None else bytes.fromhex(found[1])


def key_in(header: str, value: str) -> str:
    """Return the key in the value of a header, without `Bearer`, which `authorization` requires; empty if none."""
    value = value.strip()
    bearer = _BEARER.match(value)
    if bearer is not None:
        return value[bearer.end() :]
    return "" if header == AUTHORIZATION else value


def read_key_file(content: bytes, _path: Path) -> ParsedFile[KeyTable]:
    """Return the keys in a YAML or JSON file; raises ValueError unless it is a mapping."""
    if len(content) > _MOST_FILE_BYTES:
        raise ValueError(f"has more than {_MOST_FILE_BYTES} bytes: remove keys")
    tenants: dict[bytes, str] = {}
    lines: dict[str, int] = {}
    first_lines: dict[bytes, int] = {}
    disputed: set[bytes] = set()
    problems: list[str] = []
    for line, key, name in _entries(content.decode("utf-8-sig")):
        digest = read_digest(key) if key.startswith(_PREFIX) else digest_of(key)
        if problem := _fault(key, name, digest):
            problems.append(f"line {line}: {problem}")
        elif digest is not None and tenants.setdefault(digest, name) != name:
            disputed.add(digest)
            problems.append(f"line {line}: the key has another tenant in line {first_lines[digest]}: keep one")
        elif digest is not None:
            first_lines.setdefault(digest, line)
            lines.setdefault(name, line)
    for digest in disputed:
        del tenants[digest]
    if (more := len(problems) - _MOST_PROBLEMS) > 0:
        problems[_MOST_PROBLEMS:] = [f"and {more} more lines like these"]
    return ParsedFile(KeyTable(tenants, lines), len(tenants), tuple(problems))


def _fault(key: str, name: str, digest: bytes | None) -> str:
    if not key:
        return "the key is empty: write one"
    if digest is None:
        too_long = f"the key has more than {_MOST_KEY_LENGTH} characters: shorten it"
        return f"the digest is not valid: write {MAKE_DIGEST}" if key.startswith(_PREFIX) else too_long
    if not name:
        return "the tenant is missing: write its name after the key and a colon"
    if name == DEFAULT_FLOW:
        return f"the tenant is {name}, the fairness id of requests without one: choose another name"
    if len(name) > MOST_NAME_LENGTH:
        return f"the name of the tenant has more than {MOST_NAME_LENGTH} characters: shorten it"
    return ""


def _entries(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield line, key and tenant of each entry, as text even if a key consists of digits."""
    try:
        document = load(text, _DEPTH_LIMIT, secret=True)
    except YamlTextError as error:
        raise ValueError(f"{error}: {_FORM}") from None
    root = document.root
    if isinstance(root, yaml.ScalarNode) and not root.value:
        raise ValueError(f"it is empty: {_FORM}, or {{}} for no keys")
    if not isinstance(root, yaml.MappingNode):
        raise ValueError(f"line {document.line()}: the content is not a mapping: {_FORM}")  # noqa: TRY004  of a file
    for nodes in root.value:
        key, name = (node.value if isinstance(node, yaml.ScalarNode) else "" for node in nodes)
        yield nodes[0].start_mark.line + 1, key, name


Priority: TypeAlias = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]
TenantName: TypeAlias = Annotated[str, Meta(min_length=1, max_length=MOST_NAME_LENGTH)]

_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")  # RFC 9110, section 5.6.2
_CLASSES: tuple[Qos, ...] = ("low", "medium", "high", "critical")


class QosPriorities(Parameters, frozen=True):
    """Priority of each quality of service."""

    low: Priority = -1
    """Negative, so that requests are refused while the pool is full, unless flow control queues them."""
    medium: Priority = 0
    """The priority of requests without tenant and objective."""
    high: Priority = 10
    """Above requests without tenant and objective."""
    critical: Priority = 100
    """Above all others, so that requests are never refused or evicted for other requests."""

    def __post_init__(self) -> None:
        for lower, higher in pairwise(_CLASSES):
            if self.of(lower) >= self.of(higher):
                raise ValueError(
                    f"{lower} is {self.of(lower)} and {higher} is {self.of(higher)}: give {lower} the lower priority"
                )

    def of(self, qos: Qos) -> int:
        return {"low": self.low, "medium": self.medium, "high": self.high, "critical": self.critical}[qos]


class PriorityParameters(Parameters, frozen=True):
    """Priority of requests."""

    qos: Qos | None = None
    """Quality of service, which gives the priority of `qosPriorities`."""
    priority: Priority | None = None
    """Priority of requests without a known objective; by default that of `qos`, or else 0."""
    highest_priority: Priority | None = None
    """Highest priority that an objective may give to requests; by default no limit."""


class OtherParameters(PriorityParameters, frozen=True):
    """Unidentified requests."""

    name: Annotated[str, Meta(max_length=MOST_NAME_LENGTH)] = ""
    """Name of one tenant for all of them. By default, each request keeps its fairness id; if that is the name of a
    tenant, the request gets `default-flow`."""


class TenantParameters(PriorityParameters, frozen=True, kw_only=True):
    """One tenant."""

    name: TenantName
    """Fairness id of the tenant, for queues, quotas and metrics."""
    api_keys: tuple[str | int | float, ...] = ()
    """Digests of its API keys, `sha256:<hex>`; write keys themselves into `apiKeyFile`."""
    namespaces: tuple[Name, ...] = ()
    """Values of `namespaceHeader` that identify it."""
    fairness_ids: tuple[Name, ...] = ()
    """Fairness ids that identify it, which are values of a header that a client or the gateway sets."""

    @property
    def has_identifiers(self) -> bool:
        """Whether it can be identified without a key in a file."""
        return bool(self.api_keys or self.namespaces or self.fairness_ids)


class TenantsParameters(Parameters, frozen=True):
    """Tenants, and the headers that identify them."""

    tenants: tuple[TenantParameters, ...] = ()
    """Tenants with a priority other than that of `default`, or identified by more than keys in `apiKeyFile`."""
    api_key_file: str = ""
    """YAML or JSON file that maps API keys, or their digests, to names of tenants, such as a mounted Secret. A new
    version applies within a second. A tenant that is not in `tenants` has the priority of `default`."""
    api_key_headers: tuple[Name, ...] = headers.API_KEYS
    """Headers with an API key, in order of precedence; the first known key is used. In `authorization`, it follows
    `Bearer`. If a header is repeated, its first value is used."""
    remove_api_key: bool = False
    """Whether these headers are removed before the request is sent to the model server."""
    namespace_header: str = ""
    """Header to which the gateway writes the namespace of the client; empty for none. The gateway must not accept it
    from clients."""
    qos_priorities: QosPriorities = QosPriorities()
    """Priorities of `qos`."""
    unknown: Literal["Allow", "Refuse"] = "Allow"
    """Whether unidentified requests are refused, with 401. With `Refuse` and API keys in `tenants` or `apiKeyFile`, a
    fairness id alone is not enough, and requests with an unknown API key are refused."""
    default: OtherParameters = OtherParameters()
    """Priority of unidentified requests, and of tenants in `apiKeyFile` that are not in `tenants`."""

    @property
    def uses_keys(self) -> bool:
        return bool(self.api_key_file) or any(tenant.api_keys for tenant in self.tenants)

    def __post_init__(self) -> None:
        names = [tenant.name for tenant in self.tenants]
        self._refuse_repeated((f"tenants[{index}].name", name) for index, name in enumerate(names))
        for kind in ("namespaces", "fairnessIds"):
            self._refuse_repeated(self._values(kind))
        self._check_keys()
        self._check_headers()
        for index, name in enumerate(names):
            if name == DEFAULT_FLOW:
                raise ValueError(
                    f"tenants[{index}].name is {name!r}, the fairness id of requests without one: choose another"
                )
        if self.default.name in {*names, DEFAULT_FLOW}:
            used = "the name of a tenant" if self.default.name in names else "the fairness id of requests without one"
            raise ValueError(f"default.name is {self.default.name!r}, {used}: choose another, or remove it")
        places = [(f"tenants[{index}]", tenant) for index, tenant in enumerate(self.tenants)]
        for place, each in (*places, ("default", self.default)):
            self._check_priority(place, each)

    def priority_of(self, given: PriorityParameters) -> int | None:
        if given.priority is not None or given.qos is None:
            return given.priority
        return self.qos_priorities.of(given.qos)

    def _check_priority(self, place: str, given: PriorityParameters) -> None:
        priority, most = self.priority_of(given), given.highest_priority
        if priority is not None and most is not None and priority > most:
            source = "priority" if given.priority is not None else f"qos {given.qos}, of priority"
            raise ValueError(f"{place}.highestPriority is {most}, below its {source} {priority}: raise it")

    def _check_headers(self) -> None:
        named = [(f"apiKeyHeaders[{index}]", name) for index, name in enumerate(self.api_key_headers)]
        for place, name in (*named, *([("namespaceHeader", self.namespace_header)] if self.namespace_header else ())):
            if not _HEADER_NAME.fullmatch(name):
                raise ValueError(f"{place} is not a header name: write only the name, such as x-api-key")
        for place, name in named:
            if self.remove_api_key and name.lower() in headers.RESERVED:
                raise ValueError(f"{place} is {name!r}, which cannot be removed: delete it, or removeApiKey")

    def _check_keys(self) -> None:
        owners: dict[bytes, str] = {}
        for index, tenant in enumerate(self.tenants):
            for position, text in enumerate(tenant.api_keys):
                place = f"tenants[{index}].apiKeys[{position}]"
                digest = read_digest(text) if isinstance(text, str) else None
                if digest is None:
                    raise ValueError(
                        f"{place} is not a digest of an API key: write {MAKE_DIGEST}; keys belong in apiKeyFile"
                    )
                if digest in owners:
                    raise ValueError(f"{place} is the same as {owners[digest]}: remove one of them")
                owners[digest] = place

    def _values(self, kind: str) -> Iterator[tuple[str, str]]:
        """Yield place and value of each element in a list of all tenants."""
        for index, tenant in enumerate(self.tenants):
            values = tenant.namespaces if kind == "namespaces" else tenant.fairness_ids
            for position, value in enumerate(values):
                yield f"tenants[{index}].{kind}[{position}]", value

    @staticmethod
    def _refuse_repeated(values: Iterable[tuple[str, str]]) -> None:
        first: dict[str, str] = {}
        for place, value in values:
            if value in first:
                raise ValueError(f"{place} is {value!r}, the same as {first[value]}: it can identify only one tenant")
            first[value] = place
