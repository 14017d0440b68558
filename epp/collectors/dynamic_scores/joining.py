# SPDX-License-Identifier: Apache-2.0
"""Scores joined to endpoints by their most specific dimension."""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean
from typing import Literal, TypeAlias

from epp.collectors.dynamic_scores.results import Result
from epp.framework.dynamic_scores import DynamicScore
from epp.framework.endpoint import Endpoint

Aggregate: TypeAlias = Literal["mean", "max", "min", "last"]

_RULES: Mapping[Aggregate, Callable[[Sequence[float]], float]] = {
    "mean": fmean,
    "max": max,
    "min": min,
    "last": lambda values: values[-1],
}
_RANK = re.compile(r"-rank-\d+$")
_APP_LABELS = ("app.kubernetes.io/name", "app")


class JoinedScores:
    """The results of one score, to be looked up by endpoint."""

    def __init__(self, results: Iterable[Result], aggregate: Aggregate = "mean") -> None:
        self._rule = _RULES[aggregate]
        self._by_level: defaultdict[str, defaultdict[str, list[Result]]] = defaultdict(lambda: defaultdict(list))
        self._devices: dict[tuple[str, str], Mapping[str, float]] = {}
        """Values of the devices on a node of a cluster; one mapping for all its endpoints."""
        self.results = tuple(results)
        for each in self.results:
            self._by_level[each.level][getattr(each, each.level)].append(each)

    def of(self, endpoint: Endpoint, cluster: str) -> DynamicScore | None:
        """Return what bears on an endpoint; None for nothing."""
        pod = self._value("pod", {endpoint.name, _RANK.sub("", endpoint.name)}, endpoint, cluster)
        if pod is not None:
            return DynamicScore(value=pod, per_pod=True)
        devices = self._devices_of(endpoint.node, cluster)
        for level, names in (
            ("node", {endpoint.node}),
            ("app", {endpoint.labels.get(label, "") for label in _APP_LABELS}),
            ("cluster", {cluster, ""}),
        ):
            value = self._value(level, names, endpoint, cluster)
            if value is not None:
                return DynamicScore(value=value, devices=devices)
        return DynamicScore(devices=devices) if devices else None

    def _value(self, level: str, names: Iterable[str], endpoint: Endpoint, cluster: str) -> float | None:
        of_level = self._by_level.get(level)
        if of_level is None:
            return None
        found = [
            each.value
            for name in sorted(names)
            if (name or level == "cluster") and name in of_level
            for each in of_level[name]
            if each.cluster in {"", cluster}
            and each.namespace in {"", endpoint.namespace}
            and each.node in {"", endpoint.node}
        ]
        return self._rule(found) if found else None

    def _devices_of(self, node: str, cluster: str) -> Mapping[str, float]:
        if "device" not in self._by_level:
            return {}
        key = (node, cluster)
        if key not in self._devices:
            found: defaultdict[str, list[float]] = defaultdict(list)
            for name, results in self._by_level["device"].items():
                for each in results:
                    if each.node in {"", node} and each.cluster in {"", cluster}:
                        found[name.lower()].append(each.value)
            self._devices[key] = {name: self._rule(values) for name, values in found.items()}
        return self._devices[key]
