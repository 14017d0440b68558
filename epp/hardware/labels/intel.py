# SPDX-License-Identifier: Apache-2.0
"""Labels of Intel's GPU plugin and node feature rules."""

import re
from collections.abc import Mapping

from epp.framework.accelerators.tag import AcceleratorKind
from epp.hardware.catalogue import CATALOGUE, Catalogue
from epp.hardware.facts import Facts, Rank
from epp.hardware.labels.reading import PCI_DEVICES, LabelReader, Reading

_DEVICE_COUNT = re.compile(r"gpu\.intel\.com/device-id\.(?P<id>[0-9a-f]{4}(?:-[0-9a-f]{4})?)\.count")


def read_intel(labels: Mapping[str, str], _: Catalogue = CATALOGUE) -> Reading | None:
    """Return the facts; None without such labels."""
    reader = LabelReader(labels)
    product = reader.text("gpu.intel.com/product")
    counts = {
        match["id"].rpartition("-")[2]: count
        for key in sorted(labels)
        if (match := _DEVICE_COUNT.fullmatch(key)) and (count := reader.number(key))
    }
    if not (product or counts or reader.truth("intel.feature.node.kubernetes.io/gpu")):
        return None
    facts = Facts(
        source="labels",
        rank=Rank.LABELS,
        kind=AcceleratorKind.XPU,
        vendor="intel",
        family=reader.text("gpu.intel.com/family").lower() or None,
        product=product or None,
        features=frozenset({"level-zero"}),
    )
    return Reading(
        facts=facts,
        lookup=product or next((PCI_DEVICES[key] for device in counts if (key := ("8086", device)) in PCI_DEVICES), ""),
        count=reader.number("gpu.intel.com/device.count") or sum(counts.values()) or None,
        warnings=tuple(reader.warnings),
    )
