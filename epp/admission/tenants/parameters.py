# SPDX-License-Identifier: Apache-2.0
"""Parameters of the plugin `tenants`."""

import re
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Annotated, Literal, TypeAlias

from msgspec import Meta

from epp.admission.tenants.api_keys import MAKE_DIGEST, MOST_NAME_LENGTH, read_digest
from epp.framework import Name, Parameters, headers
from epp.framework.quotas import Qos
from epp.framework.request import DEFAULT_FLOW

Priority: TypeAlias = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]
TenantName: TypeAlias = Annotated[str, Meta(min_length=1, max_length=MOST_NAME_LENGTH)]

_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")  # RFC 9110, section 5.6.2
_CLASSES: tuple[Qos, ...] = ("low", "medium", "high", "critical")


class QosPriorities(Parameters, frozen=True):
    """Priority of each quality of service."""

    low: Priority = -1
    """Negative: refused while the pool is full, unless flow control queues it."""
    medium: Priority = 0
    """The priority of requests without tenant and objective."""
    high: Priority = 10
    """Before requests without tenant and objective."""
    critical: Priority = 100
    """Before all others: never refused or evicted for one of them."""

    def __post_init__(self) -> None:
        """Refuse a class that is not below the next one."""
        for lower, higher in pairwise(_CLASSES):
            if self.of(lower) >= self.of(higher):
                raise ValueError(
                    f"{lower} is {self.of(lower)} and {higher} is {self.of(higher)}: give {lower} the lower priority"
                )

    def of(self, qos: Qos) -> int:
        """Return the priority of a class."""
        return {"low": self.low, "medium": self.medium, "high": self.high, "critical": self.critical}[qos]


class StandingParameters(Parameters, frozen=True):
    """Priority of requests."""

    qos: Qos | None = None
    """Quality of service, which gives the priority of `qosPriorities`."""
    priority: Priority | None = None
    """Priority of requests that name no known objective; by default that of `qos`, or else 0."""
    highest_priority: Priority | None = None
    """Highest priority that an objective may give them; by default no limit."""


class OtherParameters(StandingParameters, frozen=True):
    """Unidentified requests."""

    name: Annotated[str, Meta(max_length=MOST_NAME_LENGTH)] = ""
    """Name of one tenant for all of them; by default each keeps its fairness id, unless that is the name of a tenant:
    then it gets `default-flow`."""


class TenantParameters(StandingParameters, frozen=True, kw_only=True):
    """One tenant."""

    name: TenantName
    """Its fairness id, for queues, quotas and metrics."""
    api_keys: tuple[str | int | float, ...] = ()
    """Digests of its API keys, `sha256:<hex>`; keys themselves are for `apiKeyFile`."""
    namespaces: tuple[Name, ...] = ()
    """Values of `namespaceHeader` that identify it."""
    fairness_ids: tuple[Name, ...] = ()
    """Fairness ids that identify it: values of the header that a client or the gateway sets."""

    @property
    def is_known_otherwise(self) -> bool:
        """Whether it can be identified without a key in a file."""
        return bool(self.api_keys or self.namespaces or self.fairness_ids)


class TenantsParameters(Parameters, frozen=True):
    """Tenants, and the headers that identify them."""

    tenants: tuple[TenantParameters, ...] = ()
    """Tenants with a priority other than that of `default`, or identified by more than keys in `apiKeyFile`."""
    api_key_file: str = ""
    """File in YAML or JSON that maps API keys, or their digests, to names of tenants, such as a mounted Secret. A new
    version applies at once. A tenant that is not under `tenants` has the priority of `default`."""
    api_key_headers: tuple[Name, ...] = headers.API_KEYS
    """Headers with an API key, in order of precedence: the first known key counts. In `authorization` it follows
    `Bearer`. If a header is repeated, its first value counts."""
    remove_api_key: bool = False
    """Whether these headers are removed before the request is sent to the model server."""
    namespace_header: str = ""
    """Header in which the gateway writes the namespace of the client; empty for none. The gateway must not accept it
    from clients."""
    qos_priorities: QosPriorities = QosPriorities()
    """Priorities of `qos`."""
    unknown: Literal["Allow", "Refuse"] = "Allow"
    """Whether unidentified requests are refused, with 401. With `Refuse` and API keys in `tenants` or `apiKeyFile`, a
    fairness id alone is not enough, and requests with an unknown API key are refused."""
    default: OtherParameters = OtherParameters()
    """Priority of unidentified requests, and of tenants in `apiKeyFile` that are not under `tenants`."""

    @property
    def uses_keys(self) -> bool:
        """Whether tenants have API keys."""
        return bool(self.api_key_file) or any(tenant.api_keys for tenant in self.tenants)

    def __post_init__(self) -> None:
        """Refuse keys that are not digests, and values that identify two tenants; raises ValueError."""
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
            raise ValueError(
                f"default.name is {self.default.name!r}, "
                f"{'that of a tenant' if self.default.name in names else 'the fairness id of requests without one'}: "
                "choose another, or leave it out"
            )
        places = [(f"tenants[{index}]", tenant) for index, tenant in enumerate(self.tenants)]
        for place, each in (*places, ("default", self.default)):
            self._check_standing(place, each)

    def priority_of(self, standing: StandingParameters) -> int | None:
        """Return the configured priority of a tenant; None without one."""
        if standing.priority is not None or standing.qos is None:
            return standing.priority
        return self.qos_priorities.of(standing.qos)

    def _check_standing(self, place: str, standing: StandingParameters) -> None:
        priority, most = self.priority_of(standing), standing.highest_priority
        if priority is not None and most is not None and priority > most:
            source = "priority" if standing.priority is not None else f"qos {standing.qos}, of priority"
            raise ValueError(f"{place}.highestPriority is {most}, below its {source} {priority}: raise it")

    def _check_headers(self) -> None:
        """Refuse invalid header names, and headers that cannot be removed."""
        named = [(f"apiKeyHeaders[{index}]", name) for index, name in enumerate(self.api_key_headers)]
        for place, name in (*named, *([("namespaceHeader", self.namespace_header)] if self.namespace_header else ())):
            if not _HEADER_NAME.fullmatch(name):
                raise ValueError(f"{place} is not a header name: write the name alone, such as x-api-key")
        for place, name in named:
            if self.remove_api_key and name.lower() in headers.RESERVED:
                raise ValueError(f"{place} is {name!r}, which cannot be removed: leave it out, or removeApiKey")

    def _check_keys(self) -> None:
        """Refuse keys that are not digests, without showing them."""
        owners: dict[bytes, str] = {}
        for index, tenant in enumerate(self.tenants):
            for position, text in enumerate(tenant.api_keys):
                place = f"tenants[{index}].apiKeys[{position}]"
                digest = read_digest(text) if isinstance(text, str) else None
                if digest is None:
                    raise ValueError(
                        f"{place} is not a digest of an API key: write {MAKE_DIGEST}; keys belong into apiKeyFile"
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
                raise ValueError(f"{place} is {value!r}, like {first[value]}: it can identify only one tenant")
            first[value] = place
