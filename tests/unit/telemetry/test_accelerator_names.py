# SPDX-License-Identifier: Apache-2.0
"""The metrics page shows how many of the accelerators that a plugin names do not exist."""

from prometheus_client import CollectorRegistry

from epp.framework import ManualClock
from epp.framework.plugin import Plugin
from epp.framework.registry import Registry
from epp.telemetry.pool_series import show_unknown_accelerators


def test_ome_11_unknown_names_of_each_plugin_are_counted():
    registry = Registry()

    def build(kind: str, parameters: dict) -> Plugin:
        return registry.build(kind, parameters, name=kind, clock=ManualClock())

    spill = build("cost-aware-spill", {"limits": {"t4": {}, "h-hundred": {}, "h1000": {}}})
    known = build("accelerator-filter", {"acceleratorClasses": ["h100"]})
    unnamed = build("queue-scorer", {})
    source = build("accelerator-data-source", {})
    in_use = [spill, known, unnamed, source]
    page = CollectorRegistry()
    show_unknown_accelerators(page, lambda: in_use)

    def unknown(plugin: str) -> float | None:
        labels = {"plugin_type": plugin, "plugin_name": plugin}
        return page.get_sample_value("llm_d_epp_accelerator_unknown_names", labels)

    assert (unknown("cost-aware-spill"), unknown("accelerator-filter"), unknown("queue-scorer")) == (2, 0, None)
    in_use.remove(source)  # nobody knows any accelerators then
    assert unknown("cost-aware-spill") is None
