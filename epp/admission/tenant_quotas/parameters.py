# SPDX-License-Identifier: Apache-2.0
"""Quotas in configurations and in the API of the admin port."""

from math import ceil
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta
from msgspec.structs import asdict

from epp.framework.accelerators.requirements import Memory
from epp.framework.plugin import Parameters
from epp.framework.quantities import parse_memory
from epp.framework.quotas import ALERT_PERCENT, Quota, SingleLimits, TotalLimits

_MOST_BYTES = 2**56
_NOTHING = frozenset({"0", "0Gi", "0Mi", "0Ki", "0G", "0M", "0k"})
"""Spellings of 0, which means no limit."""

_LIMITS = {
    "accelerator_memory": "accelerator_bytes",
    "concurrent_requests": "requests",
    "tokens_in_flight": "tokens",
}
"""Names of limits by parameter, where they differ."""

Tokens: TypeAlias = Annotated[int, Meta(ge=0, le=10**9)]
Requests: TypeAlias = Annotated[int, Meta(ge=0, le=10**6)]
Devices: TypeAlias = Annotated[int, Meta(ge=0, le=65_536)]
Tflops: TypeAlias = Annotated[float, Meta(ge=0, le=1e9)]
DeviceSeconds: TypeAlias = Annotated[float, Meta(ge=0, le=1e9)]
Dollars: TypeAlias = Annotated[float, Meta(ge=0, le=1e9)]
Percent: TypeAlias = Annotated[float, Meta(gt=0, le=100)]
TenantName: TypeAlias = Annotated[str, Meta(min_length=1, max_length=253)]


def _memory_bytes(size: Memory) -> float:
    """Return bytes, 0 for no limit; raises ValueError."""
    written = size.strip() if isinstance(size, str) else size
    if written == 0 or written in _NOTHING:
        return 0.0
    try:
        found = parse_memory(size)
    except ValueError:
        found = 0
    if not 0 < found <= _MOST_BYTES:
        raise ValueError(
            f"acceleratorMemory is {size!r}: write a quantity such as 40Gi, a number of GiB, or 0 for no limit"
        )
    return float(found)


class SingleParameters(Parameters, frozen=True):
    """Limits of one request; 0 for no limit."""

    prompt_tokens: Tokens = 0
    """Most tokens of its prompt; more is refused with 413. 0 for no limit, as for all limits."""
    output_tokens: Tokens = 0
    """Largest maximum output in tokens; more is refused with 400, as it is beyond all limits below."""
    accelerator_memory: Memory = 0
    """Most accelerator memory: a quantity such as `40Gi`, or a number of GiB. A request uses the memory of its endpoint
    divided by `requestsPerEndpoint`."""
    tflops: Tflops = 0.0
    """Most fp16 TFLOPS, likewise."""
    devices: Devices = 0
    """Most accelerator devices of its endpoint."""
    dollars: Dollars = 0.0
    """Highest expected price, in US dollars."""

    def __post_init__(self) -> None:
        """Refuse an invalid size; raises ValueError."""
        _memory_bytes(self.accelerator_memory)


class TotalParameters(Parameters, frozen=True):
    """Limits of all requests of a tenant together; 0 for no limit."""

    concurrent_requests: Requests = 0
    """Most requests in flight. 0 for no limit, as for all limits."""
    tokens_in_flight: Tokens = 0
    """Most tokens of the requests in flight: of their prompts and of their longest possible output."""
    tokens_per_minute: Tokens = 0
    """Most tokens of prompts and output in a minute."""
    accelerator_memory: Memory = 0
    """Most accelerator memory of the requests in flight, computed as for one request."""
    tflops: Tflops = 0.0
    """Most fp16 TFLOPS of the requests in flight, likewise."""
    device_seconds_per_day: DeviceSeconds = 0.0
    """Most accelerator devices times seconds from midnight to midnight UTC; concurrent requests of an endpoint share
    its devices."""
    dollars_per_day: Dollars = 0.0
    """Highest price of these device seconds, in US dollars."""

    def __post_init__(self) -> None:
        """Refuse an invalid size; raises ValueError."""
        _memory_bytes(self.accelerator_memory)


class QuotaParameters(Parameters, frozen=True):
    """Limits of a tenant."""

    single: SingleParameters = SingleParameters()
    """Limits of one request. A request beyond them is refused."""
    total: TotalParameters = TotalParameters()
    """Limits of all requests of the tenant together. A request beyond them fits later."""
    when_exceeded: Literal["Wait", "Refuse"] | None = None
    """Treatment of a request that fits later: `Wait`, in a queue of flow control, or `Refuse`, with 429 and
    `retry-after`. By default it waits if flow control is enabled."""
    alert_threshold_percent: Percent = ALERT_PERCENT
    """Usage of a limit at which an alert starts: in the log, on `/healthz` and in the metrics."""

    def quota(self, origin: str) -> Quota:
        """Return the quota; `origin` describes its source."""
        return Quota(
            single=SingleLimits(**_limits(self.single)),
            total=TotalLimits(**_limits(self.total)),
            waits=self.when_exceeded != "Refuse",
            alert_percent=self.alert_threshold_percent,
            origin=origin,
        )


class TenantQuotaParameters(QuotaParameters, frozen=True, kw_only=True):
    """Limits of one tenant."""

    tenant: TenantName
    """Name of the tenant, as the plugin `tenants` identifies it, or else the fairness id of its requests."""


def _limits(given: SingleParameters | TotalParameters) -> dict[str, Any]:
    """Return the limits by their names in `SingleLimits` and `TotalLimits`."""
    values = asdict(given) | {"accelerator_memory": _memory_bytes(given.accelerator_memory)}
    return {_LIMITS.get(name, name): value for name, value in values.items()}


def _parameters(limits: SingleLimits | TotalLimits, kind: type[Parameters]) -> dict[str, Any]:
    """Return the parameters by their names, of which `_limits` makes these limits."""
    found = {name: getattr(limits, _LIMITS.get(name, name)) for name in kind.__struct_fields__}
    return found | {"accelerator_memory": _quantity(limits.accelerator_bytes)}


def written(quota: Quota) -> dict[str, object]:
    """Return a quota as plain data, in the format of a configuration, without unset limits."""
    parameters = QuotaParameters(
        single=SingleParameters(**_parameters(quota.single, SingleParameters)),
        total=TotalParameters(**_parameters(quota.total, TotalParameters)),
        when_exceeded="Wait" if quota.waits else "Refuse",
        alert_threshold_percent=quota.alert_percent,
    )
    plain: dict[str, object] = msgspec.to_builtins(parameters)
    for part in ("single", "total"):
        limits: dict[str, object] = msgspec.to_builtins(getattr(parameters, part))
        plain[part] = {name: value for name, value in limits.items() if value}
    return plain


def _quantity(size_bytes: float) -> Memory:
    """Return a size in the largest binary unit that divides it, rounded up to a whole Ki."""
    whole = ceil(size_bytes)
    for unit, factor in (("Gi", 2**30), ("Mi", 2**20)):
        if whole % factor == 0 and whole:
            return f"{whole // factor}{unit}"
    return f"{ceil(whole / 2**10)}Ki" if whole else 0
