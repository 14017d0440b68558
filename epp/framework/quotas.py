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
"""Quality of service, in the words of TensorFusion."""


class SingleLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits for one request; 0 for no limit. A larger request is refused at once."""

    prompt_tokens: int = 0
    output_tokens: int = 0
    """Of the answer that the request allows for."""
    accelerator_bytes: float = 0.0
    """Accelerator memory: that of its endpoint over the requests that the endpoint serves at once."""
    tflops: float = 0.0
    """fp16 TFLOPS, likewise."""
    devices: int = 0
    """Accelerator devices of its endpoint."""
    dollars: float = 0.0
    """Expected price."""


class TotalLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits for all requests of a tenant together; 0 for no limit. A request beyond them fits later."""

    requests: int = 0
    """Under way at once."""
    tokens: int = 0
    """Tokens of requests in flight: of their prompts, and the most that they may generate."""
    tokens_per_minute: int = 0
    accelerator_bytes: float = 0.0
    """Of the requests under way, as for one."""
    tflops: float = 0.0
    """Likewise."""
    device_seconds_per_day: float = 0.0
    """Accelerator devices times seconds, from midnight to midnight UTC; requests that share an endpoint share these."""
    dollars_per_day: float = 0.0
    """The price of these."""


class SharedLimit(NamedTuple):
    """A limit on the accelerator memory of the requests of several tenants together."""

    tenants: frozenset[str]
    accelerator_bytes: float


class Quota(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of a tenant."""

    single: SingleLimits = SingleLimits()
    total: TotalLimits = TotalLimits()
    shared: tuple[SharedLimit, ...] = ()
    """Limits that it shares with other tenants, of at least `total.accelerator_bytes`."""
    waits: bool = True
    """Whether requests that fit later wait, where they can, as opposed to being refused."""
    alert_percent: float = ALERT_PERCENT
    """Share of a limit from which its use is reported."""
    origin: str = ""
    """Origin of the value, for people."""


class Blocked(NamedTuple):
    """A request that does not fit into the quota of its tenant now."""

    breach: Breach
    retry_after_seconds: int
    """From 1 to 300 for running requests and tokens of a minute; at most 86,400 for limits of a day."""
    until: float | None
    """When it fits without the end of another request, in seconds on the clock; None if it does not."""
    waits: bool
    """Whether the request may wait for the quota."""

    def error(self) -> QuotaExceededError:
        """Return the refusal of one that does not wait."""
        return QuotaExceededError(self.breach, self.retry_after_seconds)


class QuotaSource(Plugin[P], role=Role(title="Quotas")):
    """Knows the quotas of tenants."""

    requests_per_endpoint: int = 256
    """Requests that an endpoint serves at once: one of them takes this part of its memory and TFLOPS."""

    @property
    def named_quotas(self) -> Mapping[str, Quota]:
        """Quotas of the tenants that it knows by name, for operators."""
        return MappingProxyType({})

    @property
    def default_quota(self) -> Quota | None:
        """Quota of all others; None for none, or where they differ."""
        return None

    @property
    def asks_to_wait(self) -> bool:
        """Whether the configuration says that requests beyond a quota wait, as opposed to where they can."""
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
    """One whose requests are counted together, and queue together."""

    name: str
    """Its fairness id too."""
    priority: int | None = None
    """Of its requests that name no objective; None for 0."""
    highest_priority: int | None = None
    """The most that an objective may give them; None for any."""
    qos: str = ""
    """Quality of service: low, medium, high or critical; empty for none."""


TENANT: DataKey[Tenant] = DataKey("tenant", "tenants")
"""The tenant of the request; without it, the fairness id names the tenant."""
