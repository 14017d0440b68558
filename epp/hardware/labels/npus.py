# SPDX-License-Identifier: Apache-2.0
"""Labels of Intel's Gaudi accelerators and of Huawei's device plugin for Ascend."""

import re
from collections.abc import Mapping

from epp.framework.accelerators.tag import AcceleratorKind
from epp.framework.quantities import GIB
from epp.hardware.catalogue import CATALOGUE, Catalogue
from epp.hardware.facts import Facts, Rank
from epp.hardware.labels.reading import LabelReader, Reading

_MIB = 2**20
_MOST_MIB = 2**46 // _MIB
_SIZE = re.compile(r"([1-9][0-9]{0,3})(?:G|Gi|GB|GiB)")
_GAUDI = re.compile(r"(intel\.)?feature\.node\.kubernetes\.io/gaudi")


def read_gaudi(labels: Mapping[str, str], _: Catalogue = CATALOGUE) -> Reading | None:
    """Return the facts on Gaudi accelerators; None without such labels. The memory label is in MiB."""
    reader = LabelReader(labels)
    product = reader.text("habana.ai/product.name")
    memory = reader.number("habana.ai/device.memory", _MOST_MIB)
    if not (product or memory or any(_GAUDI.fullmatch(key) and reader.truth(key) for key in labels)):
        return None
    size = memory * _MIB if memory else None
    return Reading(
        facts=Facts(
            source="labels",
            rank=Rank.LABELS,
            kind=AcceleratorKind.NPU,
            vendor="intel",
            family="gaudi",
            product=product or None,
            memory_bytes=size,
        ),
        lookup=product,
        device_memory_bytes=size,
        count=reader.number("habana.ai/device.count") or None,
        warnings=tuple(reader.warnings),
    )


def read_ascend(labels: Mapping[str, str], catalogue: Catalogue = CATALOGUE) -> Reading | None:
    """Return the facts on Ascend NPUs; None without such labels.

    `accelerator` has the series, such as `huawei-Ascend910`; the chip's own name tells 910B3 from 910B4.
    """
    reader = LabelReader(labels)
    chip = reader.text("node.kubernetes.io/npu.chip.name")
    series = reader.text("accelerator").lower().removeprefix("huawei-")
    if not chip and not series.startswith(("ascend", "npu")):
        return None
    text = reader.text("mind-cluster/npu-chip-memory")
    match = _SIZE.fullmatch(text)
    if text and match is None:
        reader.warnings.append(f"label mind-cluster/npu-chip-memory: {text!r} is not of the form 64G: ignored")
    product = chip if not chip or chip.lower().startswith("ascend") else f"Ascend{chip}"
    return Reading(
        facts=Facts(
            source="labels",
            rank=Rank.LABELS,
            kind=AcceleratorKind.NPU,
            vendor="huawei",
            family="ascend",
            product=product or reader.text("accelerator").removeprefix("huawei-") or None,
            memory_bytes=int(match[1]) * GIB if match else None,
        ),
        lookup=next((each for each in (product, series) if each and catalogue.find(each)), ""),
        warnings=tuple(reader.warnings),
    )
