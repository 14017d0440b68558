# SPDX-License-Identifier: Apache-2.0
"""Results of an outside scorer: scores with their dimensions, and their join to endpoints."""

import math
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec
import numpy as np

from epp.framework.endpoint import Endpoint
from epp.framework.scoring import DynamicScore
from epp.pool.collectors.exposition import Selector
from epp.pool.collectors.page_limits import MetricFilter
from epp.pool.settings import PageLimits

_MOST_RESULTS = 20_000
_MOST_COMMAS = 16 * _MOST_RESULTS
"""Most commas in a response, since decoding blocks the interpreter."""
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
"""Labels of each dimension in order of precedence. In the page of a Prometheus server, the labels of the series have
the prefix `exported_`, and `pod` is the exporter."""
_SERIES = Selector("dynamic_score")
_PIECE_BYTES = 64 * 1024
_PAGE_LIMITS = PageLimits(family_series=_MOST_RESULTS + 1, series_bytes=4 * 1024 * 1024)
_LONGEST_SERIES_BYTES = 16 * 1024
_IN_FORMAT = re.compile(r"\$\{(\w+)\}")
_RANK = re.compile(r"-rank-\d+$")
_APP_LABELS = ("app.kubernetes.io/name", "app")


class ResultError(Exception):
    """The response of a scorer is invalid."""


class _Answered(msgspec.Struct):
    results: list[msgspec.Raw]


class _Scored(msgspec.Struct):
    score: float
    metric: dict[str, Any] = {}


class Result(NamedTuple):
    """One score and its dimensions; an empty dimension matches any value."""

    value: float
    pod: str = ""
    device: str = ""
    node: str = ""
    app: str = ""
    namespace: str = ""
    cluster: str = ""

    @property
    def level(self) -> str:
        """The most specific dimension of the score; `cluster` without one."""
        return next((level for level in ("pod", "device", "node", "app") if getattr(self, level)), "cluster")


def dimensions_in(score_format: str) -> frozenset[str]:
    """Return the dimensions in a `scoreDimensionFormat`; all of them for an empty one."""
    return frozenset(_IN_FORMAT.findall(score_format)) & _LABELS.keys() or frozenset(_LABELS)


def read_results(body: bytes, dimensions: Collection[str]) -> tuple[list[Result], int]:
    """Return the results, and the number of invalid ones; raises ResultError.

    It is slow for very many results; in a thread, it does not block the interpreter for long.
    """
    if np.count_nonzero(np.frombuffer(body, np.uint8) == ord(",")) > _MOST_COMMAS:
        raise ResultError(f"the answer has more values than {_MOST_RESULTS} results have")
    try:
        results = msgspec.json.decode(body, type=_Answered).results
    except msgspec.ValidationError:
        raise ResultError("the answer has no list `results`") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ResultError(f"the answer is not valid JSON: {error}") from None
    if len(results) > _MOST_RESULTS:
        raise ResultError(f"the answer has {len(results)} results, more than {_MOST_RESULTS}")
    read = [result for each in results if (result := _read(each, dimensions)) is not None]
    return read, len(results) - len(read)


def read_page(page: bytes) -> Mapping[str, list[Result]]:
    """Return the results in the series `dynamic_score` of a metrics page, by score; raises PageError, ResultError.

    It is slow for very many results, like `read_results`; series of more than 16 KiB are left out.
    """
    metric_filter = MetricFilter([_SERIES.name], _PAGE_LIMITS, line_bytes=_LONGEST_SERIES_BYTES)
    for start in range(0, len(page), _PIECE_BYTES):
        metric_filter.feed(page[start : start + _PIECE_BYTES])
    series = _SERIES.read(metric_filter.end())
    if len(series) > _MOST_RESULTS:
        raise ResultError(f"the page has more than {_MOST_RESULTS} series dynamic_score")
    found: dict[str, list[Result]] = {}
    for each in series:
        if math.isfinite(each.value):
            name = each.labels.get("ds_score_name", "")
            if name not in found and len(found) >= _MOST_SCORES:
                raise ResultError(f"the page has more than {_MOST_SCORES} names of scores")
            found.setdefault(name, []).append(Result(each.value, **_dimensions(each.labels, _LABELS)))
    return found


def _read(each: msgspec.Raw, dimensions: Collection[str]) -> Result | None:
    try:
        scored = msgspec.json.decode(each, type=_Scored)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return Result(scored.score, **_dimensions(scored.metric, dimensions)) if math.isfinite(scored.score) else None


def _dimensions(labels: Mapping[str, Any], wanted: Iterable[str]) -> dict[str, str]:
    found = {}
    for dimension in wanted:
        for name in _LABELS[dimension]:
            value = labels.get(name)
            if isinstance(value, str) and value and len(value) <= _MOST_CHARACTERS:
                found[dimension] = value
                break
    return found


Aggregate: TypeAlias = Literal["mean", "max", "min", "last"]


@dataclass(slots=True)
class _Summary:
    """Aggregates of several values."""

    count: int = 0
    total: float = 0.0
    high: float = -math.inf
    low: float = math.inf
    last: float = 0.0
    number: int = -1
    """Number of the last value, in order of the results."""

    def add(self, value: float, number: int) -> None:
        self.count += 1
        self.total += value
        self.high = max(self.high, value)
        self.low = min(self.low, value)
        self.last, self.number = value, number


class JoinedScores:
    """The results of one score, indexed by dimension."""

    def __init__(self, results: Iterable[Result], aggregate: Aggregate = "mean") -> None:
        self._aggregate = aggregate
        self._found: dict[tuple[str, str, str, str, str], _Summary] = {}
        """Keyed by level, name, cluster, namespace and node; an empty one means any."""
        self.count = 0
        devices: dict[tuple[str, str], dict[str, _Summary]] = {}
        for number, each in enumerate(results):
            self.count += 1
            if each.level == "device":
                of_node = devices.setdefault((each.cluster, each.node), {})
                of_node.setdefault(each.device.lower(), _Summary()).add(each.value, number)
                continue
            key = (each.level, getattr(each, each.level), each.cluster, each.namespace, each.node)
            self._found.setdefault(key, _Summary()).add(each.value, number)
        self._devices: Mapping[tuple[str, str], Mapping[str, float]] = {
            place: {name: self._result([summary]) for name, summary in of_node.items()}
            for place, of_node in devices.items()
        }
        """Values of devices by cluster and node; shared by all endpoints there."""

    def of(self, endpoint: Endpoint, cluster: str) -> DynamicScore | None:
        """Return the score of an endpoint; None without one."""
        pod = self._value("pod", (endpoint.name, _RANK.sub("", endpoint.name)), endpoint, cluster)
        if pod is not None:
            return DynamicScore(value=pod, per_pod=True)
        places = dict.fromkeys(((cluster, endpoint.node), ("", endpoint.node), (cluster, ""), ("", "")))
        devices = tuple(self._devices[place] for place in places if place in self._devices)
        for level, names in (
            ("node", (endpoint.node,)),
            ("app", tuple(endpoint.labels.get(label, "") for label in _APP_LABELS)),
            ("cluster", (cluster, "")),
        ):
            value = self._value(level, names, endpoint, cluster)
            if value is not None:
                return DynamicScore(value=value, devices=devices)
        return DynamicScore(devices=devices) if devices else None

    def _value(self, level: str, names: Iterable[str], endpoint: Endpoint, cluster: str) -> float | None:
        keys = product(
            (level,),
            {name for name in names if name or level == "cluster"},
            {"", cluster},
            {"", endpoint.namespace},
            {"", endpoint.node},
        )
        found = [self._found[key] for key in keys if key in self._found]
        return self._result(found) if found else None

    def _result(self, found: list[_Summary]) -> float:
        match self._aggregate:
            case "mean":
                return sum(each.total for each in found) / sum(each.count for each in found)
            case "max":
                return max(each.high for each in found)
            case "min":
                return min(each.low for each in found)
            case _:
                return max(found, key=lambda each: each.number).last
