# SPDX-License-Identifier: Apache-2.0
"""Objectives and rewrites of a cluster decide on requests, from the moment they are written until they are deleted."""

from collections import Counter

import pytest

from tests.support.kube import manifests as write
from tests.support.kube.policed import policed_pool
from tests.support.kube.space import space_in

POOLS = "inferencepools"
LEGACY = ("inferenceobjectives.inference", "inferencemodelrewrites.inference")
CURRENT = ("inferenceobjectives.llm-d.ai", "inferencemodelrewrites.llm-d.ai")
BLUE, GREEN = write.rule("canary", blue=None), write.rule("canary", green=None)
INSTALLED_SECONDS = 180.0
"""A kind that was absent is looked for once a minute."""


@pytest.fixture
async def pool(space, tmp_path):
    async with policed_pool(space, tmp_path) as pool:
        yield pool


async def test_exact_rule_counts_before_a_generic_one_which_takes_requests_without_a_model_too(pool):
    await pool.rewrite("any", write.rule(None, blue=None), GREEN)
    await pool.asks_for("green")
    assert [await pool.target(model) for model in ("made up", None, "canary")] == ["blue", "blue", "green"]


async def test_requests_are_shared_out_by_weight_anew_after_each_edit(pool):
    await pool.rewrite("canary", write.rule("canary", blue=1, green=3), write.rule("marker", blue=None))
    await pool.asks_for("blue", "marker")
    shares = Counter([await pool.target() for _ in range(120)])
    assert shares.keys() == {"blue", "green"}
    assert 5 <= shares["blue"] <= 60  # 30 expected, with a standard deviation of 4.7
    await pool.rewrite("canary", write.rule("canary", blue=1), write.rule("marker", green=None))
    await pool.asks_for("green", "marker")
    assert {await pool.target() for _ in range(20)} == {"blue"}
    decisions = (await pool.picker.metrics())["llm_d_epp_model_rewrite_decisions_total"]
    labels = {"model_rewrite_name=canary", "model_name=canary"}
    assert decisions[frozenset({*labels, "target_model=green"})] == shares["green"]
    assert decisions[frozenset({*labels, "target_model=blue"})] == shares["blue"] + 20


async def test_rewrite_takes_effect_when_it_is_written_edited_and_deleted(pool):
    assert await pool.target() == ""
    written = await pool.rewrite("canary", BLUE)
    await pool.asks_for("blue")
    await pool.rewrite("canary", GREEN)
    await pool.asks_for("green")
    await pool.space.delete(written)
    await pool.asks_for("")


async def test_invalid_version_of_a_rewrite_leaves_the_one_before_in_effect(pool):
    await pool.rewrite("canary", BLUE)
    await pool.asks_for("blue")
    await pool.rewrite("canary", write.rule("canary", **{"": None}))  # the definition allows it
    (problem,) = await pool.not_in_effect(1)
    assert problem == {
        "plugin": "kubernetes",
        "file": "cluster",
        "object": f"InferenceModelRewrite {pool.space}/canary",
        "reason": "spec.rules[0].targets[0].modelRewrite is empty: give a name",
        "kept": 1,
    }
    assert await pool.target() == "blue"
    await pool.rewrite("canary", GREEN)
    await pool.asks_for("green")
    assert await pool.not_in_effect() == []


async def test_sheddable_requests_are_refused_while_the_pool_is_saturated_and_others_are_not(pool):
    await pool.objective("elsewhere", -1, pool="elsewhere")
    await pool.objective("plain", None)
    await pool.objective("chat", 5)
    await pool.objective("batch", -1)
    unset = write.objective("unset-group", pool="pool", priority=-2)
    del unset["spec"]["poolRef"]["group"]
    stored = await pool.space.apply(unset)
    assert stored["spec"]["poolRef"]["group"] == "llm-d.ai"  # the default of the definition
    await pool.picker.knows(5, "inferenceobjectives.llm-d.ai")
    await pool.busy(5)
    await pool.has_status(429, "batch")
    await pool.has_status(429, "unset-group")
    others = ("elsewhere", "plain", "chat", "", "unheard-of")
    assert [await pool.status(objective) for objective in others] == [200] * 5
    metrics = await pool.picker.metrics()
    counted = [*metrics["llm_d_epp_request_total"], *metrics["llm_d_epp_request_error_total"]]
    found = [label for labels in counted for label in labels]
    assert {"priority=-1", "priority=-2", "priority=0", "priority=5"} <= set(found)
    await pool.busy(0)
    await pool.has_status(200, "batch")


async def test_objective_takes_effect_when_it_is_edited_and_deleted(pool):
    await pool.busy(5)
    batch = await pool.objective("batch", -1)
    await pool.has_status(429, "batch")
    await pool.objective("batch", 0)
    await pool.has_status(200, "batch")
    await pool.objective("batch", -1)
    await pool.has_status(429, "batch")
    await pool.space.delete(batch)
    await pool.has_status(200, "batch")


async def test_legacy_objects_count_until_current_ones_have_their_names(own_cluster, tmp_path):
    cluster = await own_cluster(crds=(POOLS, *LEGACY))
    async with space_in(cluster) as space, policed_pool(space, tmp_path) as pool:
        await pool.rewrite("canary", BLUE, api=write.LEGACY_POLICIES)
        await pool.asks_for("blue")
        await pool.busy(5)
        await pool.objective("batch", -1, api=write.LEGACY_POLICIES)
        await pool.has_status(429, "batch")
        await cluster.install(*CURRENT)
        await pool.rewrite("canary", GREEN)
        await pool.asks_for("green", seconds=INSTALLED_SECONDS)
        await cluster.uninstall(*CURRENT)
        await pool.asks_for("blue", seconds=INSTALLED_SECONDS)


async def test_legacy_objects_count_beside_current_ones_of_other_names(pool):
    await pool.rewrite("canary", BLUE, api=write.LEGACY_POLICIES)
    await pool.rewrite("canary", GREEN)
    await pool.objective("batch", -1, api=write.LEGACY_POLICIES)
    await pool.objective("other", -1)
    await pool.asks_for("green")
    await pool.busy(5)
    await pool.has_status(429, "batch")
    await pool.has_status(429, "other")
