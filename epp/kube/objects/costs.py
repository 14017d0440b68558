# SPDX-License-Identifier: Apache-2.0
"""Prices of the workload variant autoscaler: the ConfigMap accelerator-unit-costs, and VariantAutoscaling."""

from collections.abc import Mapping
from fractions import Fraction

import msgspec

from epp.kube.objects.base import Metadata, Object, Part, convert
from epp.kube.objects.limits import LargePrice, RequiredPrice

UNIT_COSTS_NAME = "accelerator-unit-costs"
DEFAULT_VARIANT_COST = Fraction(10)
"""Of the kind VariantAutoscaling; no price, since nothing is known of the hardware by it."""


class UnitCost(Part, frozen=True, kw_only=True):
    """Price of one accelerator, in the unit of the tagger's parameter `costUnit`."""

    device: str = ""
    cost: RequiredPrice


class UnitCosts(Object, frozen=True, kw_only=True):
    """Prices by name of the accelerator, such as `A100`."""

    costs: Mapping[str, UnitCost] = msgspec.field(name="data")


class ScaleTarget(Part, frozen=True, kw_only=True):
    """Workload of a variant."""

    kind: str = "Deployment"
    name: str = ""


class VariantSpec(Part, frozen=True, kw_only=True):
    """A variant of a model's servers."""

    scale_target_ref: ScaleTarget = ScaleTarget()
    variant_cost: LargePrice = None
    """Price of one replica with all its accelerators."""

    @property
    def price(self) -> Fraction | None:
        """The price; None where nobody wrote one: a cluster fills in the default of the kind."""
        return None if self.variant_cost == DEFAULT_VARIANT_COST else self.variant_cost


class VariantAutoscaling(Object, frozen=True, kw_only=True):
    """A variant and its price."""

    spec: VariantSpec = VariantSpec()


class _ConfigMap(Part, frozen=True, kw_only=True):
    metadata: Metadata
    data: Mapping[str, str] = msgspec.field(default_factory=dict)


def read_unit_costs(document: object) -> UnitCosts | None:
    """Return the prices; None for a ConfigMap of another name. Raises ValueError."""
    found = convert(document, _ConfigMap)
    if found.metadata.name != UNIT_COSTS_NAME:
        return None
    return UnitCosts(metadata=found.metadata, costs={name: _cost(name, text) for name, text in found.data.items()})


def _cost(name: str, text: str) -> UnitCost:
    place = f"data.{name}"
    try:
        data = msgspec.json.decode(text)
    except msgspec.DecodeError:
        raise ValueError(f'{place} is {text!r:.60}: write JSON such as \'{{"cost": "40.00"}}\'') from None
    return convert(data, UnitCost, place)
