# SPDX-License-Identifier: Apache-2.0
"""Weights that a scorer has of its own."""

TEXT = """\
plugins:
- {type: cluster-score, parameters: {scoreName: gpuClusterAvailable, weight: -3, missing: MISSING}}
- type: queue-scorer
schedulingProfiles:
- name: default
  plugins: [{pluginRef: cluster-score WEIGHT}, {pluginRef: queue-scorer}]
"""


def text(weight="", missing="neutral"):
    return TEXT.replace(" WEIGHT", weight).replace("MISSING", missing)


def test_ocm_3_weight_of_the_plugin_counts_where_the_profile_has_none(build):
    for weight, counts in (("", 3.0), (", weight: 5", 5.0)):
        profile = build(text(weight)).pipeline.scheduler.profiles["default"]
        assert [weighted.weight for weighted in profile.scorers] == [counts, 1.0]


def test_ocm_3_negative_weight_of_a_profile_is_refused_with_the_remedy(refused):
    (problem,) = refused(text(", weight: -2"))
    assert "write weight: -2 among the parameters of the plugin" in str(problem)


def test_ocm_2_scorer_is_a_filter_only_where_missing_scores_drop_endpoints(build):
    for missing, filters in (("neutral", []), ("fail", ["cluster-score"])):
        profile = build(text(missing=missing)).pipeline.scheduler.profiles["default"]
        assert [member.filter.name for member in profile.filters] == filters
