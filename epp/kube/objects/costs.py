# SPDX-License-Identifier: Apache-2.0
"""Prices of the workload variant autoscaler: the ConfigMap accelerator-unit-costs, and VariantAutoscaling."""

from collections.abc import Mapping
from fractions import Fraction

import msgspec

from epp.kube.objects.base import Metadata, Object, Part, convert
from epp.kube.objects.limits import LargePrice, RequiredPrice

UNIT_COSTS_NAME = "accelerator-unit-costs"
DEFAULT_VARIANT_COST = Fraction(10)
"""Default of the kind VariantAutoscaling. It says nothing about the hardware, so it is not a price."""


class UnitCost(Part, frozen=True, kw_only=True):
    """Price of one accelerator, in the unit `costUnit` of the tagger."""

    device: str = ""
    cost: RequiredPrice


class UnitCosts(Object, frozen=True, kw_only=True):
    """Prices by accelerator name, such as `A100`."""

    costs: Mapping[str, UnitCost] = msgspec.field(name="data")


class ScaleTarget(Part, frozen=True, kw_only=True):
    """Workload of a variant."""

    kind: str = "Deployment"
    name: str = ""


class VariantAutoscaling(Object, frozen=True, kw_only=True):
    """A variant of a model's servers and its price."""

    target: ScaleTarget = msgspec.field(default=ScaleTarget(), name="spec.scaleTargetRef")
    cost: LargePrice = msgspec.field(default=None, name="spec.variantCost")
    """Price of one replica with all its accelerators."""

    @property
    def price(self) -> Fraction | None:
        """The price; None for the default of the kind, which a cluster fills in if none is given."""
        return None if self.cost == DEFAULT_VARIANT_COST else self.cost


class _ConfigMap(Part, frozen=True, kw_only=True):
    metadata: Metadata
    data: Mapping[str, str] = msgspec.field(default_factory=dict)


def read_unit_costs(document: object) -> UnitCosts | None:
    """Return the prices; None for a ConfigMap with another name. Raises ValueError."""
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
