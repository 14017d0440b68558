# SPDX-License-Identifier: Apache-2.0
"""Who sends a request: its tenant, whose name is its fairness id."""

from typing import Literal, TypeAlias

import msgspec

from epp.framework.request import DataKey

Qos: TypeAlias = Literal["low", "medium", "high", "critical"]
"""Quality of service, in the words of TensorFusion."""


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
