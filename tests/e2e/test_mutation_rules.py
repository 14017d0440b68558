# SPDX-License-Identifier: Apache-2.0
"""Gateways that restrict which headers the picker may change: Envoy's `mutation_rules`."""

import json

import openai
import pytest

from epp.lab.gateway.bootstrap import bootstrap_dict
from epp.lab.gateway.settings import ClusterType, GatewaySettings
from tests.support.config_files import picker_config
from tests.support.world import open_world

BY_LABEL = picker_config("""
plugins: [{type: header-label-affinity-scorer, parameters: {headerName: x-prefer, labelKey: name}}]
""")
DESTINATION = "x-gateway-destination-endpoint"


@pytest.fixture
def rules(monkeypatch) -> dict[str, bool]:
    """Rules that the next gateway has."""
    found: dict[str, bool] = {}

    def text(settings: GatewaySettings) -> str:
        bootstrap = bootstrap_dict(settings)
        (listener,) = bootstrap["static_resources"]["listeners"]
        filters = listener["filter_chains"][0]["filters"][0]["typed_config"]["http_filters"]
        (ext_proc,) = [each for each in filters if each["name"] == "envoy.filters.http.ext_proc"]
        ext_proc["typed_config"]["mutation_rules"] = found
        return json.dumps(bootstrap)

    monkeypatch.setattr("epp.lab.gateway.envoy.bootstrap_json", text)
    return found


@pytest.mark.parametrize(
    ("given", "is_seen"), [({}, True), ({"allow_all_routing": True}, True), ({"disallow_all": True}, False)]
)
async def test_request_goes_to_the_endpoint_whatever_headers_the_picker_may_set(simulated, rules, given, is_seen):
    rules |= given
    sims = await simulated("a", "b")
    addresses = {name: sim.address for name, sim in sims.items()}
    endpoints = ",".join(f"{name}={address};name={name}" for name, address in addresses.items())
    gateway = GatewaySettings(listen_port=0, cluster_type=ClusterType.OVERRIDE_HOST)
    async with open_world(endpoints=endpoints, sims=sims, config=BY_LABEL, gateway=gateway) as world:
        for name in ("a", "b", "a"):
            assert await world.ask("hello", extra_headers={"x-prefer": name}) == name
            headers = dict((await world.requests_at(name))[-1]["headers"])
            assert headers.get(DESTINATION) == (addresses[name] if is_seen else None)


async def test_rule_that_makes_a_refused_header_an_error_fails_requests(sim, rules):
    rules |= {"disallow_all": True, "disallow_is_error": True}
    async with open_world(endpoints=sim.address, config=BY_LABEL) as world:
        with pytest.raises(openai.InternalServerError):
            await world.ask("hello")
