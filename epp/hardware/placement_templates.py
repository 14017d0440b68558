# SPDX-License-Identifier: Apache-2.0
"""Placement templates read from SchedulingConfigTemplates, without their invalid values, and sentences on these."""

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from epp.framework.accelerators.arrays import PlacementMode, PlacementTemplate
from epp.kube.objects.gpu_pools import GpuFilter, GpuPool, SchedulingConfigTemplate

CONNECTIONS, ZONE = "avoidTooMuchConnectionsOnSameGPU", "avoidDifferentZone"
"""Types of GPU filters."""
_DEFAULT_ZONE = "topology.kubernetes.io/zone"
_MODES = {mode.value: mode for mode in PlacementMode}
_DIGITS = 18


def placement_faults(
    templates: Mapping[str, SchedulingConfigTemplate], pools: Iterable[GpuPool]
) -> Iterator[tuple[str, str, str]]:
    """Yield kind and name of each template, or pool, with a value that has no effect; and field, value and remedy.

    Such a value is invalid, or the name of a template that is not there.
    """
    for each in templates.values():
        yield from (("SchedulingConfigTemplate", each.id, fault) for fault in read_template(each)[1])
    for pool in pools:
        name = pool.spec.scheduling_config_template
        if name and name not in templates:
            fault = (
                f"spec.schedulingConfigTemplate is {name!r}: add such a SchedulingConfigTemplate, or correct the name"
            )
            yield "GPUPool", pool.id, fault


def read_template(each: SchedulingConfigTemplate) -> tuple[PlacementTemplate, tuple[str, ...]]:
    """Return the template without its invalid values, and field, value and remedy of each of these."""
    given, faults = each.spec.placement, []
    mode = _MODES.get(given.mode)
    if mode is None:
        mode = PlacementMode.NODE_COMPACT
        faults.append(f"spec.placement.mode is {given.mode!r}: write {_choice(_MODES)}, the default being {mode.value}")
    template = PlacementTemplate(name=each.name, mode=mode, allow_local_gpu=given.allow_using_local_gpu)
    for number, one in enumerate(given.gpu_filters):
        try:
            template = _with_filter(template, one)
        except ValueError as error:
            faults.append(f"spec.placement.gpuFilters[{number}].{error}")
    return template, tuple(faults)


def _with_filter(template: PlacementTemplate, given: GpuFilter) -> PlacementTemplate:
    """Return the template with a filter; of two of one type, the stricter or the last one counts."""
    if given.type == CONNECTIONS:
        most = _count(given.params.get("connectionNum"))
        before = template.most_connections
        return msgspec.structs.replace(template, most_connections=most if before is None else min(most, before))
    if given.type == ZONE:
        label = given.params.get("topologyKey", _DEFAULT_ZONE)
        if not isinstance(label, str) or not label:
            raise ValueError(f"params.topologyKey is {label!r}: write a label of nodes, such as {_DEFAULT_ZONE}")
        return msgspec.structs.replace(template, zone_label=label)
    raise ValueError(f"type is {given.type!r}: write {CONNECTIONS} or {ZONE}")


def _count(value: object) -> int:
    """Return a whole number of at least 1, also in quotes; raises ValueError."""
    text = str(value)
    is_number = text.isascii() and text.isdecimal() and len(text) <= _DIGITS
    if not is_number or isinstance(value, bool) or int(text) == 0:
        shown = "missing" if value is None else repr(value)[:60]
        raise ValueError(f"params.connectionNum is {shown}: write a whole number of at least 1")
    return int(text)


def _choice(names: Iterable[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} or {last}"
