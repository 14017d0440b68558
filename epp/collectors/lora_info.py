"""Reads which adapters are on an engine, from the labels of one series."""

import math
from dataclasses import dataclass

from epp.collectors.exposition import Selector
from epp.framework.snapshot import LoraState


@dataclass(frozen=True, slots=True)
class LoraInfo:
    """A series whose labels name adapters and whose value is a time stamp."""

    selector: Selector

    def read(self, page: bytes) -> LoraState | None:
        """Return what the series with the highest value says: old ones never go away. None without any series."""
        series = [one for one in self.selector.read(page) if not math.isnan(one.value)]
        if not series:
            return None
        labels = max(series, key=lambda one: one.value).labels
        max_lora = labels.get("max_lora", "")
        return LoraState(
            running=_adapters(labels.get("running_lora_adapters", "")),
            waiting=_adapters(labels.get("waiting_lora_adapters", "")),
            max_adapters=int(max_lora) if max_lora.isdecimal() else 0,
        )


def _adapters(names: str) -> frozenset[str]:
    return frozenset(name for part in names.split(",") if (name := part.strip()))
