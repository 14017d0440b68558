# SPDX-License-Identifier: Apache-2.0
"""Scores of a hub in files, and the picker's own scores on its page, through a real Envoy."""

from pathlib import Path

import aiohttp

from tests.support.config_files import endpoints_file, picker_config, replace
from tests.support.gateways import Gateway, gateway_with
from tests.support.waiting import read_until

HUB = Path(__file__).parents[1] / "data" / "clusters" / "hub.yaml"
PROFILE = picker_config("""
plugins:
- type: file-discovery
  parameters: {{path: {directory}/endpoints.yaml}}
- type: cluster-data-source
  parameters: {{paths: [{directory}/hub.yaml]}}
- type: random-picker
dataLayer: {{discovery: {{pluginRef: file-discovery}}}}
""")


async def scores(gateway: Gateway) -> list[float]:
    """How many scores are valid, expired and missing."""
    return [await gateway.total("cluster_scores", f"state={state}") for state in ("valid", "expired", "missing")]


async def test_ocm_2_and_12_scores_are_read_of_files_and_shown_to_a_hub(simulated, tmp_path):
    sims = await simulated("a", "b")
    clusters = dict(zip(sims, ("cluster-east", "cluster-west"), strict=True))
    pool = {name: (sim.address, {}, clusters[name]) for name, sim in sims.items()}
    endpoints_file(tmp_path / "endpoints.yaml", **pool)
    (tmp_path / "hub.yaml").write_text(HUB.read_text())
    (tmp_path / "config.yaml").write_text(PROFILE.format(directory=tmp_path))
    async with gateway_with(tmp_path / "config.yaml") as gateway:
        assert await scores(gateway) == [3, 1, 0]
        await gateway.process.says("cluster score expired")

        replace(tmp_path / "hub.yaml", HUB.read_text().replace("value: 60", "value: 600"))
        said = await gateway.process.says("status.scores[0].value is 600: it must be between -100 and 100")
        assert "AddOnPlacementScore cluster-east/resource-usage-score" in said

        await read_until(lambda: scores(gateway), lambda found: found == [2, 1, 0], "the others are used")
        path = "/apis/cluster.open-cluster-management.io/v1alpha1/addonplacementscores"

        async def headroom() -> dict[str, int | None]:
            url = f"http://127.0.0.1:{gateway.metrics_port}{path}"
            async with aiohttp.ClientSession() as http, http.get(url) as answer:
                items = (await answer.json())["items"]
            shown = {
                each["metadata"]["namespace"]: {one["name"]: one["value"] for one in each["status"]["scores"]}
                for each in items
            }
            return {name: values.get("routingHeadroom") for name, values in shown.items()}

        room = {"cluster-east": 100, "cluster-west": 100}
        await read_until(headroom, lambda found: found == room, "both clusters have room")
