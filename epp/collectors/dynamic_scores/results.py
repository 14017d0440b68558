# SPDX-License-Identifier: Apache-2.0
"""What a scorer answers: scores with the dimensions that they are for."""

import math
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from epp.collectors.exposition import Selector

_MOST_RESULTS = 20_000
_MOST_SCORES = 64
_MOST_CHARACTERS = 253
_LABELS: Mapping[str, tuple[str, ...]] = {
    "pod": ("ds_pod", "exported_pod", "pod"),
    "device": ("ds_device", "device", "UUID"),
    "node": ("ds_node", "node", "Hostname"),
    "app": ("ds_app", "app"),
    "namespace": ("ds_namespace", "exported_namespace", "namespace"),
    "cluster": ("ds_cluster", "cluster"),
}
"""Labels of each dimension, the first one that is there counts: in a page of Prometheus itself, the labels of the
series have the prefix `exported_`, and `pod` is that of the exporter."""
_SERIES = Selector("dynamic_score")
_IN_FORMAT = re.compile(r"\$\{(\w+)\}")


class ResultError(Exception):
    """The answer is not what a scorer answers."""


class Result(NamedTuple):
    """One score, and what it is for: an empty dimension is any."""

    value: float
    pod: str = ""
    device: str = ""
    node: str = ""
    app: str = ""
    namespace: str = ""
    cluster: str = ""

    @property
    def level(self) -> str:
        """Its most specific dimension; `cluster` if it has none."""
        return next((level for level in ("pod", "device", "node", "app") if getattr(self, level)), "cluster")


def dimensions_in(score_format: str) -> frozenset[str]:
    """Return the dimensions in a `scoreDimensionFormat`; all of them for an empty one."""
    return frozenset(_IN_FORMAT.findall(score_format)) & _LABELS.keys() or frozenset(_LABELS)


def read_results(body: bytes, dimensions: Collection[str]) -> tuple[list[Result], int]:
    """Return the results, and the number of those left out as no score; raises ResultError."""
    try:
        found = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ResultError(f"the answer is not JSON: {error}") from None
    results = found.get("results") if isinstance(found, dict) else None
    if not isinstance(results, list):
        raise ResultError("the answer has no list `results`")
    if len(results) > _MOST_RESULTS:
        raise ResultError(f"the answer has {len(results)} results, more than {_MOST_RESULTS}")
    read = [result for each in results if (result := _read(each, dimensions)) is not None]
    return read, len(results) - len(read)


def read_page(page: bytes) -> Mapping[str, list[Result]]:
    """Return the results in the series `dynamic_score` of a metrics page, by score; raises PageError, ResultError."""
    series = _SERIES.read(page)
    if len(series) > _MOST_RESULTS:
        raise ResultError(f"the page has {len(series)} series dynamic_score, more than {_MOST_RESULTS}")
    found: dict[str, list[Result]] = {}
    for each in series:
        if math.isfinite(each.value):
            name = each.labels.get("ds_score_name", "")
            if name not in found and len(found) >= _MOST_SCORES:
                raise ResultError(f"the page has more than {_MOST_SCORES} names of scores")
            found.setdefault(name, []).append(Result(each.value, **_dimensions(each.labels, _LABELS)))
    return found


def _read(each: Any, dimensions: Collection[str]) -> Result | None:
    if not isinstance(each, dict):
        return None
    score, labels = each.get("score"), each.get("metric", {})
    if isinstance(score, bool) or not isinstance(score, int | float) or not isinstance(labels, dict):
        return None
    try:
        value = float(score)
    except OverflowError:
        return None
    return Result(value, **_dimensions(labels, dimensions)) if math.isfinite(value) else None


def _dimensions(labels: Mapping[str, Any], wanted: Iterable[str]) -> dict[str, str]:
    found = {}
    for dimension in wanted:
        for name in _LABELS[dimension]:
            value = labels.get(name)
            if isinstance(value, str) and value and len(value) <= _MOST_CHARACTERS:
                found[dimension] = value
                break
    return found
