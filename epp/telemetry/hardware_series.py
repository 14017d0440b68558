# SPDX-License-Identifier: Apache-2.0
"""Metrics of a pool's hardware: endpoints, cost, utilisation, picks, and accelerator names that do not exist."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from prometheus_client.registry import CollectorRegistry

from epp.framework import ACCELERATOR_SELECTION, Request
from epp.framework.accelerators.tag import AcceleratorTag
from epp.framework.datalayer import KnowsAccelerators, unknown_accelerators
from epp.framework.plugin import Plugin
from epp.framework.records import Derivation
from epp.framework.result import SchedulingResult
from epp.framework.snapshot import ACCELERATOR, IN_FLIGHT, Snapshot
from epp.telemetry.endpoints import PRICE_DERIVATIONS, count_unpriced
from epp.telemetry.families import Computed, Counters, Families, Row
from epp.telemetry.request_series import MAX_COMBINATIONS, OTHER, Bounded


def show_hardware(families: Families, pool_name: str, shown: Callable[[], Snapshot]) -> None:
    """Add the metrics of the hardware of the snapshot that is shown, by accelerator."""

    def rows() -> Iterator[Row]:
        snapshot = shown()
        tags = snapshot.records(ACCELERATOR)
        slots_by_name = defaultdict(list)
        names = tags.derive_objects(hardware_name)
        for slot in snapshot.available.tolist():
            slots_by_name[names[slot]].append(slot)
        costs = tags.derive_numbers(AcceleratorTag.cost_per_hour)
        busy = snapshot.column(IN_FLIGHT) > 0
        for name, found in slots_by_name.items():
            slots = np.array(found, dtype=np.intp)
            priced = slots[~np.isnan(costs[slots])]
            cost = float(costs[priced].sum()) if len(priced) else None
            busy_cost = float(costs[priced[busy[priced]]].sum()) if len(priced) else None
            yield (pool_name, name), (len(slots), cost, busy_cost)

    texts = {
        "llm_d_epp_accelerator_ready_endpoints": "Reachable endpoints by accelerator.",
        "llm_d_epp_accelerator_cost_per_hour": "US dollars an hour for the reachable endpoints with a known price, by "
        "accelerator.",
        "llm_d_epp_accelerator_busy_cost_per_hour": "Of these dollars, those for endpoints that have requests of this "
        "picker in flight.",
    }
    Computed(families.registry, ("name", "accelerator"), texts, rows)
    text = "Endpoints with accelerators, or of unknown hardware, whose price is unknown."
    unpriced = {"llm_d_epp_endpoints_without_price": text}
    Computed(families.registry, ("name",), unpriced, lambda: [((pool_name,), (count_unpriced(shown()),))])


def hardware_name(tag: AcceleratorTag) -> str:
    """Return the class of an accelerator; its model, or at least its kind, where it has none."""
    return tag.primary_class or tag.model or tag.kind.value


HARDWARE_DERIVATIONS: Sequence[Derivation] = (
    *PRICE_DERIVATIONS,
    (np.object_, hardware_name),
    (np.float64, AcceleratorTag.cost_per_hour),
)
"""Values computed from the tag of each endpoint."""


class SelectionSeries:
    """Counts the pick of each profile; accelerators beyond 256 combinations are counted under `other`."""

    def __init__(self, counter: Counters) -> None:
        self._counter = counter
        self._known = Bounded[tuple[str, ...]](MAX_COMBINATIONS)

    def count(self, request: Request, result: SchedulingResult) -> None:
        """Count the picks for a request."""
        asked = request.get(ACCELERATOR_SELECTION)
        for profile, leg in result.profiles.items():
            if leg is None:
                continue
            tag = leg.candidates.snapshot.records(ACCELERATOR).values[leg.slot]
            labels = hardware_name(tag), profile, "" if asked is None else asked.of(profile).policy
            self._counter.count(*self._known.shown(labels, (OTHER, *labels[1:])))


def show_unknown_accelerators(registry: CollectorRegistry, plugins: Callable[[], Iterable[Plugin[Any]]]) -> None:
    """Add the number of unknown names of each plugin that names any accelerators."""

    def rows() -> Iterator[Row]:
        used = tuple(plugins())
        sources = [plugin for plugin in used if isinstance(plugin, KnowsAccelerators)]
        for plugin in used:
            if sources and plugin.accelerator_names:
                yield (plugin.plugin_type, plugin.name), (len(unknown_accelerators(plugin, sources)),)

    text = "AcceleratorClasses, or models, that a plugin names in its parameters and that do not exist."
    Computed(registry, ("plugin_type", "plugin_name"), {"llm_d_epp_accelerator_unknown_names": text}, rows)
