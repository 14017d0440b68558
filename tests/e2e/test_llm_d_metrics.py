# SPDX-License-Identifier: Apache-2.0
"""Pages of real pickers that have served requests, held against the list of llm-d-router's metrics."""

import asyncio
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from aiohttp import web
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from tests.e2e.test_policies import objective, rewrite, written
from tests.support.config_files import endpoints_file, picker_config, with_pool
from tests.support.gateways import Gateway, gateway_of
from tests.support.listening import listening
from tests.support.waiting import until
from tests.support.world import MODEL

LIST = Path(__file__).parents[1] / "contract" / "llm_d_metrics.yaml"
KNOWN = yaml.safe_load(LIST.read_text())
HERE = {name: row for name, row in KNOWN["families"].items() if "absent" not in row}
OLDER = {
    older: row | {"labels": labels, "more": ()}
    for row in HERE.values()
    for older, labels in row.get("legacy", {}).items()
}
PREFIX = "llm_d_epp_"
FLAGS = ("--enable-grpc-stream-metrics", "--allow-experimental-plugins", "--refresh-prometheus-metrics-interval=100ms")
LONG = "The quick brown fox jumps over the lazy dog. " * 200
ENDLESS = 150_000
"""Tokens that take much longer than any test."""
DISAGGREGATED = picker_config("""
featureGates: [flowControl]
plugins:
- {type: disagg-profile-handler, parameters: {deciders: {prefill: prefix-based-pd-decider}}}
- {type: prefix-based-pd-decider, parameters: {nonCachedTokens: 512}}
- type: disaggregatedset-rollout-screener
  parameters:
    scope: {labelSelector: set=mine}
    headerSelectors: [{name: revision, headerName: x-revision, labelKey: revision, mode: strict}]
    revisionGating: {mode: sum, revisionLabelKey: revision, roleLabelKey: role, requireRoles: {values: [decode]}}
- {type: prefill-filter}
- {type: decode-filter}
- {type: prefix-cache-scorer}
- {type: mm-embeddings-cache-scorer}
- {type: token-load-scorer}
- {type: program-aware-fairness}
- {type: predicted-latency-producer, parameters: {streamingMode: true}}
- {type: precise-prefix-cache-producer}
flowControl:
  maxRequests: 100
  maxBytes: 10M
  defaultPriorityBand: {fairnessPolicyRef: program-aware-fairness}
schedulingProfiles:
- {name: prefill, plugins: [{pluginRef: prefill-filter}, {pluginRef: token-load-scorer}]}
- name: decode
  plugins: [{pluginRef: decode-filter}, {pluginRef: prefix-cache-scorer}, {pluginRef: mm-embeddings-cache-scorer}]
""")
EVICTING = picker_config("""
featureGates: [flowControl]
plugins:
- {type: pd-profile-handler, parameters: {deciderPluginName: always-disagg-pd-decider}}
- {type: always-disagg-pd-decider}
- {type: queue-scorer}
- {type: inflight-load-producer}
- {type: concurrency-detector, parameters: {maxConcurrency: 1}}
- {type: sheddable-eviction-filter}
flowControl:
  enableEviction: true
  saturationDetector: {pluginRef: concurrency-detector}
schedulingProfiles:
- {name: prefill, plugins: [{pluginRef: queue-scorer}]}
- {name: decode, plugins: [{pluginRef: queue-scorer}]}
""")


async def unreadable_page(_: web.Request) -> web.Response:
    return web.Response(text="{" * 100, content_type="text/plain")


async def ask(gateway: Gateway, *, tokens: int = 3, headers: dict[str, str] | None = None, **more: object) -> int:
    body = {"model": MODEL, "prompt": LONG, "max_tokens": tokens, "ignore_eos": True, **more}
    return (await gateway.post("/v1/completions", body, **(headers or {}))).status


async def show_image(gateway: Gateway) -> int:
    image = {"type": "image_url", "image_url": {"url": "https://a/b.png"}}
    body = {"model": MODEL, "messages": [{"role": "user", "content": [image]}], "max_tokens": 1}
    return (await gateway.post("/v1/chat/completions", body)).status


async def page_of(gateway: Gateway) -> dict[str, Metric]:
    """The metrics by name, those of counters with `_total`."""
    url = f"http://127.0.0.1:{gateway.metrics_port}/metrics"
    async with aiohttp.ClientSession() as http, http.get(url) as response:
        families = text_string_to_metric_families(await response.text())
        return {family.name + ("_total" if family.type == "counter" else ""): family for family in families}


async def whole_page(gateway: Gateway) -> dict[str, Metric]:
    """The metrics of a page during which nothing was counted: its families are written one after the other.

    Polls and plugin calls go on, so that one of several pages may show a count that rose between its two names.
    """
    for _ in range(50):
        page = await page_of(gateway)
        if not different(page):
            break
    return page


def different(page: dict[str, Metric]) -> list[str]:
    """The older names of a page whose sums are not those of the new names."""
    return [
        older
        for name, row in HERE.items()
        for older in row.get("legacy", {})
        if older in page and total(page[older]) != pytest.approx(total(page[f"{PREFIX}{name}"]))
    ]


async def is_shown(gateway: Gateway, *names: str) -> bool:
    page = await page_of(gateway)
    return all(f"{PREFIX}{name}" in page and page[f"{PREFIX}{name}"].samples for name in names)


async def served(simulated: Callable, directory: Path, *flags: str) -> list[dict[str, Metric]]:
    """Let two pickers serve requests of all kinds; return their pages."""
    sims = await simulated("p", "d")
    objects = written(
        directory / "objects.yaml", objective("high", 10), objective("low", -5), rewrite("tuned", ("alias", {MODEL: 1}))
    )
    pages = []
    async with listening(unreadable_page) as broken:
        labels = {"set": "mine", "revision": "1"}
        pool = endpoints_file(
            directory / "endpoints.yaml",
            p=(sims["p"].address, {**labels, "role": "prefill", "llm-d.ai/role": "prefill"}),
            d=(sims["d"].address, {**labels, "role": "decode", "llm-d.ai/role": "decode"}),
            nobody=("127.0.0.1:1", {}),
            broken=(broken, {}),
        )
        config = directory / "disaggregated.yaml"
        config.write_text(with_pool(DISAGGREGATED, pool))
        async with gateway_of(f"--config-file={config}", f"--objects={objects}", *FLAGS, *flags) as gateway:
            assert await ask(gateway, model="alias") == 200
            assert await ask(gateway, stream=True, stream_options={"include_usage": True}) == 200
            assert await ask(gateway, headers={"x-revision": "none"}) == 503
            assert [await show_image(gateway) for _ in range(2)] == [200, 200]
            names = ("datalayer_poll_errors_total", "datalayer_extract_errors_total", "flow_control_stale_endpoints")
            await until(lambda: is_shown(gateway, *names), "polls of the endpoints that have no page are counted")
            pages.append(await whole_page(gateway))
    config = directory / "evicting.yaml"
    config.write_text(EVICTING)
    endpoints = f"--endpoints=d={sims['d'].address}"
    async with gateway_of(f"--config-file={config}", endpoints, f"--objects={objects}", *FLAGS, *flags) as gateway:
        low = asyncio.create_task(
            ask(gateway, tokens=ENDLESS, headers={"x-llm-d-inference-objective": "low"}, prompt="a")
        )
        await until(lambda: is_shown(gateway, "inflight_requests"), "a request is in flight")
        pages.append(await whole_page(gateway))
        assert await ask(gateway, headers={"x-llm-d-inference-objective": "high"}) == 200
        assert await low == 429
        await until(lambda: is_shown(gateway, "flow_control_revocations_total"), "its end is counted")
        pages.append(await whole_page(gateway))
    return pages


def check(name: str, row: dict[str, Any], families: list[Metric]) -> list[str]:
    """Return what differs from the list."""
    samples = [sample for family in families for sample in family.samples if not sample.name.endswith("_created")]
    if not samples:
        return [f"{name}: has no samples ({'missing' if not families else 'nothing was counted'})"]
    wrong = [f"{name}: is a {family.type}" for family in families if family.type != row["type"]]
    labels = {frozenset(sample.labels) - {"le"} for sample in samples}
    expected = frozenset((*row["labels"], *row.get("more", ())))
    if labels != {expected}:
        wrong.append(f"{name}: has labels {[sorted(each) for each in labels]}, not {sorted(expected)}")
    if row["type"] == "histogram":
        bounds = {float(sample.labels["le"]) for sample in samples if sample.name.endswith("_bucket")}
        if bounds - {float("inf")} != {float(bound) for bound in KNOWN["buckets"][row["buckets"]]}:
            wrong.append(f"{name}: has buckets {sorted(bounds)}")
    return wrong


async def test_pages_have_all_metrics_of_llm_d_router_with_its_types_labels_and_buckets(simulated, tmp_path):
    shown = defaultdict(list)
    for page in await served(simulated, tmp_path):
        assert not different(page)
        for name, family in page.items():
            shown[name].append(family)
    wrong = [each for name, row in HERE.items() for each in check(f"{PREFIX}{name}", row, shown[f"{PREFIX}{name}"])]
    wrong += [each for name, row in OLDER.items() for each in check(name, row, shown[name])]
    assert not wrong, "\n".join(wrong)
    assert all(shown[name][0].samples for name in KNOWN["process"])
    absent = {name for name, row in KNOWN["families"].items() if "absent" in row}
    assert not [name for name in absent if f"{PREFIX}{name}" in shown or name in shown]
    for name, row in HERE.items():
        for older in row.get("legacy", {}):
            assert len(shown[older]) == len(shown[f"{PREFIX}{name}"]), older


def total(family: Metric) -> float:
    return sum(sample.value for sample in family.samples if not sample.name.endswith("_created"))


@pytest.mark.slow
async def test_older_names_are_gone_with_their_flag(simulated, tmp_path):
    for page in await served(simulated, tmp_path, "--legacy-metrics=false"):
        assert not OLDER.keys() & page.keys()
        assert f"{PREFIX}request_total" in page
