# SPDX-License-Identifier: Apache-2.0
"""A new revision of a disaggregated deployment is rolled out: no request crosses revisions."""

import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.config_files import endpoints_file, picker_config, with_pool
from tests.support.waiting import until
from tests.support.world import World, open_world

PREFILLER = "x-prefiller-host-port"
SHARE = "llm_d_epp_disaggregatedset_revision_gating_share"
PLUGIN = {"plugin_type": "disaggregatedset-rollout-screener", "plugin_name": "rollout"}
LONG = "The quick brown fox jumps over the lazy dog. " * 20
CONFIG = picker_config("""
plugins:
- type: disaggregatedset-rollout-screener
  name: rollout
  parameters:
    scope: {labelSelector: disaggregatedset.x-k8s.io/name=my-set}
    headerSelectors:
    - {name: revision, headerName: x-disagg-revision, labelKey: disaggregatedset.x-k8s.io/revision, mode: strict}
    revisionGating: {mode: sum, requireRoles: {values: [prefill, decode]}}
- {type: prefill-filter}
- {type: decode-filter}
- {type: random-picker}
- {type: always-disagg-pd-decider}
- type: disagg-profile-handler
  parameters: {deciders: {prefill: always-disagg-pd-decider}}
schedulingProfiles:
- {name: prefill, plugins: [{pluginRef: prefill-filter}, {pluginRef: random-picker}]}
- {name: decode, plugins: [{pluginRef: decode-filter}, {pluginRef: random-picker}]}
""")


def members(sims, *names: str) -> dict[str, tuple[str, dict[str, str]]]:
    """Servers named `<revision>-<first letter of the role><number>`."""
    found = {}
    for name in names:
        revision, _, place = name.partition("-")
        role = "prefill" if place.startswith("p") else "decode"
        labels = {
            "llm-d.ai/role": role,
            "disaggregatedset.x-k8s.io/name": "my-set",
            "disaggregatedset.x-k8s.io/role": role,
            "disaggregatedset.x-k8s.io/revision": revision,
        }
        found[name] = (sims[name].address, labels)
    return found


@contextlib.asynccontextmanager
async def rollout(sims, directory: Path, *names: str) -> AsyncIterator[World]:
    pool = endpoints_file(directory / "endpoints.yaml", **members(sims, *names))
    async with open_world(sims=sims, config=with_pool(CONFIG, pool), experimental=True) as world:
        await world.scraped()
        yield world


async def ask(world: World, **more) -> tuple[str, str]:
    """Return the server that answered and the revision that the response names."""
    headers = await world.headers(LONG, max_tokens=1, **more)
    return headers["x-sim-server"], headers["x-disagg-revision"]


async def prefillers_told(world: World, server: str) -> set[str]:
    """Addresses of the servers that the requests at this one were told to fetch their prompts' caches from."""
    return {
        value for record in await world.requests_at(server) for name, value in record["headers"] if name == PREFILLER
    }


def share(world: World, revision: str) -> float | None:
    labels = {**PLUGIN, "mode": "sum", "revision": revision}
    return world.gateway.picker.metrics.registry.get_sample_value(SHARE, labels)


@pytest.mark.slow
async def test_rollout_from_a_revision_without_its_prefill_server_to_the_new_one_alone(simulated, tmp_path):
    old, new = ("old-p1", "old-d1", "old-d2", "old-d3", "old-d4"), ("new-p1", "new-d1")
    sims = await simulated(*old, *new)
    async with rollout(sims, tmp_path, *old, "new-d1") as world:
        answers = [await ask(world) for _ in range(30)]
        assert {revision for _, revision in answers} == {"old"}
        assert {server for server, _ in answers} <= {*old}
        assert (share(world, "old"), share(world, "new")) == (1.0, 0.0)

        endpoints_file(tmp_path / "endpoints.yaml", **members(sims, *old, *new))
        await until(lambda: world.available == {*old, *new}, "the new prefill server is in the pool")
        answers = [await ask(world) for _ in range(300)]
        assert all(server.startswith(f"{revision}-") for server, revision in answers)
        counts = Counter(revision for _, revision in answers)
        assert 175 < counts["old"] < 253  # 300 * 5/7 = 214, and 5 standard deviations of 7.8
        assert share(world, "old") == pytest.approx(5 / 7)
        for server in (*old[1:], "new-d1"):
            own = sims["new-p1" if server == "new-d1" else "old-p1"].address
            assert await prefillers_told(world, server) <= {own}
        assert await prefillers_told(world, "new-d1") == {sims["new-p1"].address}

        endpoints_file(tmp_path / "endpoints.yaml", **members(sims, *new))
        await until(lambda: world.available == {*new}, "the old revision has left")
        assert {await ask(world) for _ in range(10)} == {("new-d1", "new")}
        assert (share(world, "old"), share(world, "new")) == (None, 1.0)
