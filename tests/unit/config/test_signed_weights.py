# SPDX-License-Identifier: Apache-2.0
"""Weights that a scorer has of its own."""

import pytest

from epp.config import Builder, assemble, load_text
from epp.framework import ManualClock
from epp.framework.errors import ConfigurationError
from epp.framework.registry import Registry

TEXT = """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- {{type: cluster-score, parameters: {{scoreName: gpuClusterAvailable, weight: -3, missing: {missing}}}}}
- type: queue-scorer
schedulingProfiles:
- name: default
  plugins: [{{pluginRef: cluster-score{weight}}}, {{pluginRef: queue-scorer}}]
"""


def profile_of(weight="", missing="neutral"):
    text = TEXT.format(weight=weight, missing=missing)
    assembly = assemble(load_text(text), Builder(Registry(), ManualClock()))
    return assembly.pipeline.scheduler.profiles["default"]


def test_ocm_3_weight_of_the_plugin_counts_where_the_profile_has_none():
    assert [weighted.weight for weighted in profile_of().scorers] == [3.0, 1.0]
    assert [weighted.weight for weighted in profile_of(", weight: 5").scorers] == [5.0, 1.0]


def test_ocm_3_negative_weight_of_a_profile_is_refused_with_the_remedy():
    with pytest.raises(ConfigurationError, match="write weight: -2 among the parameters of the plugin"):
        profile_of(", weight: -2")


def test_ocm_2_scorer_is_a_filter_only_where_missing_scores_drop_endpoints():
    assert [member.filter.name for member in profile_of().filters] == []
    assert [member.filter.name for member in profile_of(missing="fail").filters] == ["cluster-score"]
