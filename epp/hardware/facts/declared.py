# SPDX-License-Identifier: Apache-2.0
"""Facts that users declare: in the endpoint list, in overrides, or by the name of a class on the pod."""

from collections.abc import Mapping
from fnmatch import fnmatchcase

import msgspec

from epp.framework.accelerators.tag import AcceleratorDeclaration, Partition, Sharing
from epp.framework.endpoint import Endpoint
from epp.framework.quantities import parse_memory
from epp.hardware.catalogue import Catalogue
from epp.hardware.facts import Facts, Rank
from epp.hardware.facts.classes import class_facts
from epp.hardware.mig import UNKNOWN_SLICE, mig_gpu, parse_mig_profile, partition_of
from epp.hardware.mig.possible import profile_fault
from epp.kube.objects.limits import BARE_GB_BELOW
from epp.kube.objects.ome import AcceleratorClass

ENDPOINT_LIST = "endpoint list"
_OVERRIDE = "override "
CLASS_NAMES_ON_PODS = ("ome.io/accelerator-class", "ome.ai/accelerator-class", "inference.optimization/acceleratorName")
"""Annotations, or labels, with the AcceleratorClass of a pod."""


def override_source(number: int) -> str:
    """Return the source of the facts of an override, counted from 1."""
    return f"{_OVERRIDE}{number}"


def is_declaration(fact: Facts) -> bool:
    """Return whether the facts are what the operator wrote of an endpoint, without those of the class it names."""
    return fact.rank is Rank.OPERATOR and (fact.source == ENDPOINT_LIST or fact.source.startswith(_OVERRIDE))


class AcceleratorOverride(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Accelerator of the endpoints that match; at least one of endpoint, labels and node is required."""

    accelerator: AcceleratorDeclaration
    """Accelerator of these endpoints."""
    endpoint: str = ""
    """Pattern for `name` or `namespace/name`, with `*` and `?`."""
    labels: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Labels of the endpoint; all must match."""
    node: str = ""
    """Pattern for the name of its node."""

    def __post_init__(self) -> None:
        """Check that there is a condition; raises ValueError."""
        if not (self.endpoint or self.labels or self.node):
            raise ValueError("an override has no condition: write endpoint ('*' for all), labels or node")

    def fits(self, endpoint: Endpoint, node: str) -> bool:
        """Return whether the override applies to this endpoint."""
        name = endpoint.id if "/" in self.endpoint else endpoint.name
        return (
            (not self.endpoint or fnmatchcase(name, self.endpoint))
            and (not self.node or fnmatchcase(node, self.node))
            and all(endpoint.labels.get(key) == value for key, value in self.labels.items())
        )


class Declared(msgspec.Struct, frozen=True):
    """Facts of a declaration."""

    facts: tuple[Facts, ...] = ()
    classes: tuple[str, ...] = ()
    """The AcceleratorClass in it."""
    warnings: tuple[str, ...] = ()


def declared_facts(
    declaration: AcceleratorDeclaration,
    source: str,
    classes: Mapping[str, AcceleratorClass],
    catalogue: Catalogue,
    rank: Rank = Rank.OPERATOR,
) -> Declared:
    """Return the facts: those of the declaration first, then those of the class or product that it names."""
    warnings: list[str] = []
    name = declaration.accelerator_class
    product = catalogue.find(name) if name and name not in classes else None
    if name and product is None and name not in classes:
        warnings.append(f"{source}: {name!r} is neither an AcceleratorClass nor a product of the catalogue; ignored")
    model = classes[name].spec.model if name in classes else name
    sliced_wrongly = profile_fault(declaration.profile, model) if declaration.profile else ""
    if sliced_wrongly:
        warnings.append(f"{source}: profile {sliced_wrongly}; it is ignored")
        declaration = msgspec.structs.replace(declaration, profile="")
    partition = UNKNOWN_SLICE if sliced_wrongly else _partition(declaration, model)
    profile = parse_mig_profile(declaration.profile) if declaration.profile else None
    memory = _memory(declaration.memory, warnings, source)
    if memory is None and profile is not None:
        memory = profile.memory_bytes // (declaration.sharers or 1)
    facts = [
        Facts(
            source=source,
            rank=rank,
            kind=declaration.kind,
            count=declaration.count,
            memory_bytes=memory,
            partition=partition,
            per_hour=declaration.cost_per_hour,
            spot=declaration.spot,
        )
    ]
    if name in classes:
        facts.append(class_facts(classes[name], catalogue, rank))
    elif product is not None:
        facts.append(msgspec.structs.replace(product.facts(partition=partition), rank=rank))
    if sliced_wrongly:
        facts = [facts[0], *(fact.without_figures for fact in facts[1:])]
    if len(facts) > 1:  # a class or product without a count is at least one device
        facts.append(Facts(source=source, rank=Rank.SELF, count=1))
    return Declared(tuple(facts), (name,) if name in classes else (), tuple(warnings))


def class_on_pod(*texts: Mapping[str, str]) -> str:
    """Return the first class in annotations or labels; empty for none."""
    return next((text[key] for text in texts for key in CLASS_NAMES_ON_PODS if text.get(key)), "")


def _partition(declaration: AcceleratorDeclaration, model: str) -> Partition | None:
    sharers = declaration.sharers or 1
    if declaration.profile:
        profile = parse_mig_profile(declaration.profile)
        if profile is not None:
            return partition_of(profile, mig_gpu(model) if model else None, sharers=sharers)
    if sharers > 1:
        share = 1 / sharers
        return Partition(kind=Sharing.TIME_SLICING, compute_fraction=share, memory_fraction=share, sharers=sharers)
    return None


def _memory(text: str, warnings: list[str], source: str) -> int | None:
    if not text:
        return None
    bare = text.strip()
    if bare.replace(".", "", 1).isdecimal() and float(bare) < BARE_GB_BELOW:
        warnings.append(f"{source}: memory is {text!r}, which means bytes: read as {bare}Gi; write {bare}Gi")
    return parse_memory(text)
