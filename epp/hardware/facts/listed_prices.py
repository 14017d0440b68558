# SPDX-License-Identifier: Apache-2.0
"""Facts from the user's price list: prices of an endpoint's accelerators by machine type and region."""

from collections.abc import Iterable, Mapping, Sequence
from math import floor
from typing import NamedTuple

from epp.framework.accelerators.tag import AcceleratorTag, Sharing
from epp.hardware.catalogue import Product
from epp.hardware.catalogue.instance_types import InstanceType, find_instance_type
from epp.hardware.facts import Facts, Rank
from epp.hardware.facts.declared import is_declaration
from epp.hardware.facts.surroundings import Surroundings
from epp.hardware.labels import INSTANCE_TYPE_LABELS, NodeFacts
from epp.hardware.prices import Place, PriceList
from epp.hardware.resources import profile_of

_WHOLE_DEVICES = (
    "nvidia.com/gpu",
    "amd.com/gpu",
    "gpu.intel.com/i915",
    "gpu.intel.com/xe",
    "habana.ai/gaudi",
    "google.com/tpu",
    "aws.amazon.com/neuron",
    "aws.amazon.com/neurondevice",
)
"""Resources by which nodes count whole accelerators, rather than slices, cores or replicas."""
_REGION_LABELS = ("topology.kubernetes.io/region", "failure-domain.beta.kubernetes.io/region")


class ListedPrices(NamedTuple):
    """Prices of the list, and why there are none."""

    facts: tuple[Facts, ...] = ()
    remark: str = ""


def listed_prices(
    prices: PriceList,
    tag: AcceleratorTag,
    product: Product | None,
    classes: tuple[str, ...],
    around: Surroundings,
    *,
    devices: int | None,
) -> ListedPrices:
    """Return the prices for an endpoint with this tag; `devices` are the whole accelerators of its machine."""
    if not prices:
        return ListedPrices()
    quote = prices.quote(
        Place(
            product=product,
            names=tuple(name for name in (tag.product, tag.model) if name),
            classes=classes,
            instance_type=_label(around.node_labels, INSTANCE_TYPE_LABELS),
            region=_label(around.node_labels, _REGION_LABELS),
            devices=devices,
        )
    )
    facts = []
    if quote.per_hour is not None:
        facts.append(Facts(source=quote.per_hour.source, rank=Rank.OPERATOR, per_hour=quote.per_hour.per_hour))
    if (spot := quote.spot_per_hour) is not None:
        facts.append(Facts(source=spot.source, rank=Rank.OPERATOR, spot_per_hour=spot.per_hour))
    return ListedPrices(tuple(facts), quote.remark)


def with_listed_prices(known: Iterable[Facts], listed: Sequence[Facts]) -> list[Facts]:
    """Return the facts with the listed prices: after the operator's declarations, before all other sources."""
    known = list(known)
    if not listed:
        return known
    declared = [fact for fact in known if is_declaration(fact)]
    return [*declared, *listed, *(fact for fact in known if not is_declaration(fact))]


def devices_of_machine(around: Surroundings, node: NodeFacts, instance_types: Mapping[str, InstanceType]) -> int | None:
    """Return the whole accelerators of the machine, however they are divided or shared; None if that is not known.

    By its type, or else by its labels, or else by the resources of the node.
    """
    machine = find_instance_type(_label(around.node_labels, INSTANCE_TYPE_LABELS), instance_types)
    if machine is not None:
        return machine.count
    divided = any(fact.partition is not None and fact.partition.kind is Sharing.MIG for fact in node.facts)
    if divided:  # the count is that of slices
        return None
    if node.count is not None:
        return node.count or None
    allocatable = {} if around.node is None else around.node.status.allocatable
    shared = any(fact.partition is not None for fact in node.facts)
    if shared or any(profile_of(name) and amount > 0 for name, amount in allocatable.items()):
        return None
    return max((floor(allocatable[name]) for name in _WHOLE_DEVICES if name in allocatable), default=0) or None


def _label(labels: Mapping[str, str], names: Iterable[str]) -> str:
    return next((labels[name].strip() for name in names if labels.get(name, "").strip()), "")
