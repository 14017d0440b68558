# SPDX-License-Identifier: Apache-2.0
"""Metrics that a plugin keeps and the metrics page shows."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PluginMetric:
    """A gauge or a counter; its labels begin with `plugin_type` and `plugin_name`."""

    name: str
    """Without the prefix `llm_d_epp_`, and for a counter without `_total`."""
    text: str
    labels: tuple[str, ...] = ()
    """Further labels."""
    is_counter: bool = False


@dataclass(frozen=True, slots=True)
class Sample:
    """A value of a metric."""

    metric: PluginMetric
    value: float
    labels: tuple[str, ...] = ()
    """Values of the further labels."""
