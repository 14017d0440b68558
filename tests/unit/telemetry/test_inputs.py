# SPDX-License-Identifier: Apache-2.0
"""The metrics page shows what plugins follow, as it is when the page is read."""

import pytest
from prometheus_client import CollectorRegistry

from epp.framework import WAITING, Parameters, Request, Scorer
from epp.framework.plugin_status import IgnoredValue, InputProblem, InputState
from epp.telemetry.process_series import show_inputs


class Follower(Scorer[Parameters]):
    plugin_type = "follower"
    state = InputState()

    @property
    def inputs(self) -> InputState:
        return self.state

    def score(self, request: Request, candidates):
        return candidates.values(WAITING)


class Shown:
    """Plugins in use, and the samples of their files."""

    def __init__(self) -> None:
        self.plugins: list[Follower] = []
        self.registry = CollectorRegistry()
        show_inputs(self.registry, lambda: self.plugins)

    def __call__(self, plugin: str, file: str) -> tuple[float | None, float | None, float | None]:
        """Problems, objects kept, versions rejected."""
        names = ("input_problems", "input_objects_kept", "input_versions_rejected_total")
        labels = {"plugin_name": plugin, "file": file}
        problems, kept, rejected = (self.registry.get_sample_value(f"llm_d_epp_{name}", labels) for name in names)
        return problems, kept, rejected


@pytest.fixture
def shown() -> Shown:
    return Shown()


def test_each_file_of_each_plugin_has_its_numbers(shown):
    first, second = Follower(name="first"), Follower(name="second")
    shown.plugins = [first, second]
    objects = (InputProblem("a", "Node n", "bad", 1), InputProblem("a", "Node m", "bad"))
    first.state = InputState((*objects, InputProblem("b", "", "gone", 7)), {"a": 5, "b": 0, "c": 1})
    second.state = InputState((), {"a": 0})
    assert shown("first", "a") == (2, 1, 5)
    assert shown("first", "b") == (1, 7, 0)
    assert shown("first", "c") == (0, 0, 1)
    assert shown("second", "a") == (0, 0, 0)


def test_plugin_that_is_no_longer_in_use_is_not_shown_and_metrics_can_be_asked_for_by_name(shown):
    plugin = Follower(name="first")
    plugin.state = InputState((), {"a": 0})
    shown.plugins = [plugin]
    families = list(shown.registry.restricted_registry(["llm_d_epp_input_problems"]).collect())
    assert [family.name for family in families] == ["llm_d_epp_input_problems"]
    assert shown("first", "a") == (0, 0, 0)
    shown.plugins = []
    assert shown("first", "a") == (None, None, None)


def test_ignored_values_are_counted_by_kind_of_object(shown):
    plugin = Follower(name="hardware")
    shown.plugins = [plugin]
    values = [("GPU", "a"), ("GPU", "b"), ("Node", "n")]
    plugin.state = InputState(ignored=tuple(IgnoredValue("f", kind, name, "x is -1") for kind, name in values))

    def ignored(kind: str) -> float | None:
        labels = {"plugin_name": "hardware", "kind": kind}
        return shown.registry.get_sample_value("llm_d_epp_input_values_ignored", labels)

    assert (ignored("GPU"), ignored("Node"), ignored("Pod")) == (2, 1, None)
    plugin.state = InputState()
    assert ignored("GPU") is None
