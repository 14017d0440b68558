# SPDX-License-Identifier: Apache-2.0
"""Scores joined to endpoints by their most specific dimension."""

import re
from collections.abc import Iterable, Mapping
from itertools import product
from typing import Literal, TypeAlias

from epp.framework.dynamic_scores import DynamicScore
from epp.framework.endpoint import Endpoint
from epp.pool.collectors.dynamic_scores.results import Result

Aggregate: TypeAlias = Literal["mean", "max", "min", "last"]

_RANK = re.compile(r"-rank-\d+$")
_APP_LABELS = ("app.kubernetes.io/name", "app")


class _Summary:
    """What any rule needs of several values."""

    __slots__ = ("count", "high", "last", "low", "number", "total")

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0
        self.high = float("-inf")
        self.low = float("inf")
        self.last = 0.0
        self.number = -1
        """Of the last value, in order of the results."""

    def add(self, value: float, number: int) -> None:
        self.count += 1
        self.total += value
        self.high = max(self.high, value)
        self.low = min(self.low, value)
        self.last, self.number = value, number


class JoinedScores:
    """The results of one score; to look up an endpoint costs the same however many there are."""

    def __init__(self, results: Iterable[Result], aggregate: Aggregate = "mean") -> None:
        self._aggregate = aggregate
        self._found: dict[tuple[str, str, str, str, str], _Summary] = {}
        """By level, its value, cluster, namespace and node; empty for any."""
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
        """Values of devices by cluster and node; one mapping for all their endpoints."""

    def of(self, endpoint: Endpoint, cluster: str) -> DynamicScore | None:
        """Return what bears on an endpoint; None for nothing."""
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
