# SPDX-License-Identifier: Apache-2.0
"""The metrics page shows what plugins count themselves."""

from collections.abc import Sequence

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from epp.framework import WAITING, Request, Scorer
from epp.framework.plugin_status import Distribution, Legacy, PluginMetric, Sample
from epp.telemetry.plugin_metrics import PluginMetrics

SEEN = PluginMetric("seen", "Requests seen.", ("kind",), is_counter=True)
LEVEL = PluginMetric("level", "A level.")


class Counting(Scorer):
    plugin_type = "counting"
    metrics = (SEEN, LEVEL)
    found: Sequence[Sample] = (Sample(SEEN, 3, ("a",)), Sample(SEEN, 1, ("b",)), Sample(LEVEL, 0.5))

    @property
    def samples(self) -> Sequence[Sample]:
        return self.found

    def score(self, request: Request, candidates):
        return candidates.values(WAITING)


class Broken(Counting):
    plugin_type = "broken"

    @property
    def samples(self) -> Sequence[Sample]:
        raise RuntimeError("no samples")


@pytest.fixture
def plugins() -> list[Scorer]:
    return [Counting(name="one")]


def value(plugins: list[Scorer], name: str, **labels: str) -> float | None:
    registry = CollectorRegistry()
    registry.register(PluginMetrics(lambda: plugins))
    return registry.get_sample_value(f"llm_d_epp_{name}", {"plugin_type": "counting", **labels})


def test_samples_have_type_and_name_of_the_plugin_and_plugins_of_one_type_share_a_metric(plugins):
    assert value(plugins, "seen_total", plugin_name="one", kind="a") == 3
    assert value(plugins, "seen_total", plugin_name="one", kind="b") == 1
    assert value(plugins, "level", plugin_name="one") == 0.5
    other = Counting(name="other")
    other.found = (Sample(LEVEL, 0.25),)
    plugins.append(other)
    assert [value(plugins, "level", plugin_name=name) for name in ("one", "other")] == [0.5, 0.25]


def test_what_a_plugin_did_not_declare_is_not_shown(plugins):
    plugins[0].found = (Sample(PluginMetric("other", ""), 1), Sample(LEVEL, 1))
    assert value(plugins, "other", plugin_name="one") is None
    assert value(plugins, "level", plugin_name="one") == 1


def test_plugin_that_fails_is_logged_once_and_takes_no_other_with_it(plugins):
    plugins.insert(0, Broken(name="broken"))
    registry = CollectorRegistry()
    with capture_logs() as logs:
        registry.register(PluginMetrics(lambda: plugins))
        for _ in range(2):
            labels = {"plugin_type": "counting", "plugin_name": "one"}
            assert registry.get_sample_value("llm_d_epp_level", labels) == 0.5
    assert [line["plugin"] for line in logs] == ["broken"]


TIMES = PluginMetric("times", "Times.", ("kind",), bounds=(1.0, 2.0), legacy=Legacy("older_times"))
ALSO = PluginMetric("also", "Counted.", ("kind",), is_counter=True, legacy=Legacy("older_also_total", ("kind",)))


class Measuring(Counting):
    metrics = (TIMES, ALSO)

    @property
    def samples(self) -> Sequence[Sample]:
        found = Distribution(TIMES.bounds)
        for seconds in (0.5, 1.5, 9.0):
            found.observe(seconds)
        return Sample(TIMES, found, ("a",)), Sample(TIMES, found, ("b",)), Sample(ALSO, 2, ("a",))


def test_histogram_of_a_plugin_has_buckets_and_its_older_name_which_may_be_left_out_their_sums():
    plugins = [Measuring(name="one"), Measuring(name="two")]
    registry, without = CollectorRegistry(), CollectorRegistry()
    registry.register(PluginMetrics(lambda: plugins))
    without.register(PluginMetrics(lambda: plugins, legacy=False))
    shown = registry.get_sample_value
    labels = {"plugin_type": "counting", "plugin_name": "one", "kind": "a"}
    assert [shown("llm_d_epp_times_bucket", {**labels, "le": le}) for le in ("1.0", "2.0", "+Inf")] == [1, 2, 3]
    assert shown("llm_d_epp_times_sum", labels) == 11.0
    assert [shown("older_times_bucket", {"le": le}) for le in ("1.0", "2.0", "+Inf")] == [4, 8, 12]
    assert shown("older_also_total", {"kind": "a"}) == 4
    assert without.get_sample_value("older_also_total", {"kind": "a"}) is None
