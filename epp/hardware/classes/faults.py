# SPDX-License-Identifier: Apache-2.0
"""Validation of AcceleratorClasses: invalid values, and values in another form than the API requires."""

from collections.abc import Iterable, Iterator

from epp.framework.accelerators.device_expressions import DeviceExpression
from epp.hardware.classes import affinity
from epp.hardware.facts.classes import TIERS, compute_capability
from epp.kube.objects.base import Object
from epp.kube.objects.limits import BARE_GB_BELOW
from epp.kube.objects.ome import AcceleratorClass


def doubts_of(each: AcceleratorClass) -> Iterator[str]:
    """Yield doubtful and invalid values of the class, each with its interpretation; all others count."""
    memory = each.spec.capabilities.memory
    if memory is not None and 0 < memory < BARE_GB_BELOW:
        number = f"{float(memory):g}"
        yield f"spec.capabilities.memoryGB is {number}, which means bytes: read as {number}Gi; write {number}Gi"
    required = each.spec.discovery.affinity.node_affinity.required
    if required is not None:
        yield from affinity.problems_of(required)
    yield from (f"{fault}; it selects no device" for fault in _expression_faults(each))
    yield from (f"{fault}; it is ignored" for fault in _value_faults(each))


def faults_of(each: AcceleratorClass) -> Iterator[str]:
    """Yield invalid values of the class, which have no effect: field, value and remedy."""
    required = each.spec.discovery.affinity.node_affinity.required
    if required is not None:
        yield from (f"spec.discovery.affinity: {fault}" for fault in affinity.faults_of(required))
    yield from _expression_faults(each)
    yield from _value_faults(each)


def object_faults(each: Object) -> Iterable[str]:
    """Return the invalid values of an object of any kind."""
    return faults_of(each) if isinstance(each, AcceleratorClass) else ()


def device_expression(each: AcceleratorClass) -> DeviceExpression | None:
    """Return the CEL device selector of the class, if any; raises ValueError with field and remedy."""
    dra = each.spec.discovery.dra
    if dra is None or not dra.expression:
        return None
    return DeviceExpression(dra.expression, place="spec.discovery.dra.expression")


def _expression_faults(each: AcceleratorClass) -> Iterator[str]:
    try:
        device_expression(each)
    except ValueError as error:
        yield str(error)


def _value_faults(each: AcceleratorClass) -> Iterator[str]:
    capabilities, tier = each.spec.capabilities, each.spec.cost.tier
    if capabilities.compute_capability and compute_capability(capabilities) is None:
        yield f"spec.capabilities.computeCapability is {capabilities.compute_capability!r}: write a version like 9.0"
    if tier and tier.lower() not in TIERS:
        yield f"spec.cost.tier is {tier!r}: write low, medium or high"
