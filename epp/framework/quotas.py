# SPDX-License-Identifier: Apache-2.0
"""Tenants, and their quotas: limits on a single request of a tenant, and on all of its requests together."""

from abc import abstractmethod
from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from epp.framework.plugin import P, Plugin, Role
from epp.framework.refusals import Breach, QuotaExceededError
from epp.framework.request import DataKey

ALERT_PERCENT = 95.0
"""Default share of a limit from which its use is reported."""
Qos: TypeAlias = Literal["low", "medium", "high", "critical"]
"""Quality of service, named as in TensorFusion."""


class SingleLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits for one request; 0 for no limit. A larger request is refused immediately."""

    prompt_tokens: int = 0
    output_tokens: int = 0
    """Maximum output tokens of the request."""
    accelerator_bytes: float = 0.0
    """Accelerator memory of its endpoint, divided by the requests that the endpoint serves concurrently."""
    tflops: float = 0.0
    """fp16 TFLOPS of its endpoint, divided in the same way."""
    devices: int = 0
    """Accelerator devices of its endpoint."""
    dollars: float = 0.0
    """Expected price."""


class TotalLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits for all requests of a tenant together; 0 for no limit. A request beyond them may fit later."""

    requests: int = 0
    """Concurrent requests."""
    tokens: int = 0
    """Tokens of requests in flight: those of their prompts, and their maximum output tokens."""
    accelerator_bytes: float = 0.0
    """Sum over concurrent requests of the accelerator memory, as in SingleLimits."""
    tflops: float = 0.0
    """Sum over concurrent requests of the TFLOPS, as in SingleLimits."""
    tokens_per_minute: int = 0
    device_seconds_per_day: float = 0.0
    """Accelerator devices times seconds, from midnight to midnight UTC; requests that share an endpoint share these."""
    dollars_per_day: float = 0.0
    """Price of these device seconds."""


class SharedLimit(NamedTuple):
    """A limit on the accelerator memory of the requests of several tenants together."""

    tenants: frozenset[str]
    accelerator_bytes: float


class Quota(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of a tenant."""

    single: SingleLimits = SingleLimits()
    total: TotalLimits = TotalLimits()
    shared: tuple[SharedLimit, ...] = ()
    """Limits that several tenants share, of at least `total.accelerator_bytes`."""
    waits: bool = True
    """Whether requests that may fit later wait if flow control is enabled; otherwise they are refused."""
    alert_percent: float = ALERT_PERCENT
    """Share of a limit from which its use is reported."""
    origin: str = ""
    """Human-readable origin of the quota."""


class Blocked(NamedTuple):
    """A request that does not fit into the quota of its tenant at the moment."""

    breach: Breach
    retry_after_seconds: int
    """1 to 300 for limits on concurrent requests and on tokens per minute; at most 86,400 for limits per day."""
    until: float | None
    """Time at which the request fits even if no other request ends, in seconds on the clock; None if there is none."""
    waits: bool
    """Whether the request may wait for the quota."""

    def error(self) -> QuotaExceededError:
        """Return the refusal of a request that does not wait."""
        return QuotaExceededError(self.breach, self.retry_after_seconds)


class QuotaSource(Plugin[P], role=Role(title="Quotas")):
    """Provides the quotas of tenants."""

    requests_per_endpoint: int = 256
    """Requests that an endpoint serves concurrently; each takes an equal part of its memory and TFLOPS."""

    @property
    def named_quotas(self) -> Mapping[str, Quota]:
        """Quotas of individual tenants by name, for operators."""
        return MappingProxyType({})

    @property
    def default_quota(self) -> Quota | None:
        """Quota of all other tenants; None if they have no quota, or different ones."""
        return None

    @property
    def asks_to_wait(self) -> bool:
        """Whether the configuration explicitly makes requests beyond a quota wait, not only by default."""
        return False

    @property
    def limits_hardware(self) -> bool:
        """Whether a quota limits what depends on the hardware of endpoints."""
        return any(
            (quota.single.accelerator_bytes, quota.single.tflops, quota.single.devices) != (0, 0, 0)
            or (quota.total.accelerator_bytes, quota.total.tflops, quota.total.device_seconds_per_day) != (0, 0, 0)
            for quota in self._all
        )

    @property
    def limits_dollars(self) -> bool:
        """Whether a quota limits what depends on the prices of endpoints."""
        return any(quota.single.dollars or quota.total.dollars_per_day for quota in self._all)

    @property
    def _all(self) -> tuple[Quota, ...]:
        return (*self.named_quotas.values(), *(() if self.default_quota is None else (self.default_quota,)))

    @abstractmethod
    def quota_of(self, tenant: str) -> Quota | None:
        """Return the quota of a tenant; None for no limits. Called for each request, so it must be a plain look-up."""


class Tenant(msgspec.Struct, frozen=True, kw_only=True):
    """Owner of requests, which are counted and queued together."""

    name: str
    """Name of the tenant, and the fairness id of its requests."""
    priority: int | None = None
    """Priority of requests without an objective; None for 0."""
    highest_priority: int | None = None
    """Maximum priority by an objective; None for no maximum."""
    qos: str = ""
    """Quality of service: low, medium, high or critical; empty if there is none."""


TENANT: DataKey[Tenant] = DataKey("tenant", "tenants")
"""Tenant of the request; if missing, the fairness id names the tenant."""
