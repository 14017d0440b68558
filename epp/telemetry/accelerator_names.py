# SPDX-License-Identifier: Apache-2.0
"""A metric of the accelerators that plugins name and that do not exist, as of the moment the page is read."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from epp.framework.datalayer import KnowsAccelerators, unknown_accelerators
from epp.framework.plugin import Plugin


class UnknownAccelerators(Collector):
    """Shows the number of unknown names of each plugin that names any accelerators."""

    def __init__(self, plugins: Callable[[], Iterable[Plugin[Any]]]) -> None:
        self._plugins = plugins

    def describe(self) -> Iterable[Metric]:
        """Return the metric without samples."""
        return (_family(),)

    def collect(self) -> Iterator[Metric]:
        """Yield the metric with a sample for each plugin."""
        plugins = tuple(self._plugins())
        sources = [plugin for plugin in plugins if isinstance(plugin, KnowsAccelerators)]
        family = _family()
        for plugin in plugins:
            if sources and plugin.accelerator_names:
                family.add_metric((plugin.plugin_type, plugin.name), len(unknown_accelerators(plugin, sources)))
        yield family


def _family() -> GaugeMetricFamily:
    return GaugeMetricFamily(
        "llm_d_epp_accelerator_unknown_names",
        "AcceleratorClasses, or models, that a plugin names in its parameters and that do not exist.",
        labels=("plugin_type", "plugin_name"),
    )
