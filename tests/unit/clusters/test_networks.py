# SPDX-License-Identifier: Apache-2.0
"""Latency and cost of the network to clusters, from the configuration and from claims of a hub."""

import pytest
import yaml

from epp.framework import ConfigurationError
from epp.framework.clusters import CLUSTER
from epp.framework.endpoint import Endpoint
from epp.pool.clusters.tagger import ClusterTagger
from tests.support.config_files import replace
from tests.support.hub_objects import cluster
from tests.support.plugins import built

NAMES = {"latencyClaim": "latency.example.com", "costClaim": "cost.example.com"}


def build(**parameters) -> ClusterTagger:
    return built(ClusterTagger, parameters)


def network(source: ClusterTagger, name: str) -> tuple[float | None, float | None]:
    status = source.tag(Endpoint("e", "10.0.0.1", 8000, cluster=name)).attributes[CLUSTER]
    return status.latency, status.transfer_cost


def managed(latency: str, cost: str = "", *, as_labels: bool = False) -> str:
    facts = {"latency.example.com": latency, "cost.example.com": cost}
    return yaml.safe_dump(cluster("west", labels=facts) if as_labels else cluster("west", claims=facts))


def test_ocm_17_configured_network_belongs_to_the_endpoints_of_its_cluster():
    source = build(cluster="east", networks={"west": {"latency": "35ms", "cost": 0.02}})
    assert [network(source, name) for name in ("west", "north", "east")] == [(0.035, 0.02), (None, None), (None, None)]


@pytest.mark.parametrize("as_labels", [False, True])
async def test_ocm_17_claims_and_labels_of_the_hub_declare_it_and_the_configuration_replaces_them(tmp_path, as_labels):
    path = tmp_path / "hub.yaml"
    path.write_text(managed("80ms", "0.05", as_labels=as_labels))
    assert network(build(paths=[str(path)], **NAMES), "west") == (0.08, 0.05)
    source = build(paths=[str(path)], networks={"west": {"latency": "35ms"}}, **NAMES)
    assert network(source, "west") == (0.035, 0.05)
    replace(path, managed("10ms", "0.07", as_labels=as_labels))
    affected = await source.check()
    assert affected(Endpoint("e", "10.0.0.1", 8000, cluster="west"))
    assert network(source, "west") == (0.035, 0.07)


def test_ocm_17_claim_that_is_no_number_is_told_of_and_not_used(tmp_path):
    path = tmp_path / "hub.yaml"
    path.write_text(managed("fast", "-3"))
    source = build(paths=[str(path)], **NAMES)
    assert network(source, "west") == (None, None)
    assert source.inputs.remarks == (
        "ManagedCluster west: latency.example.com is 'fast': write a number such as 35ms",
        "ManagedCluster west: cost.example.com is '-3': write a number such as 0.02",
    )


def test_ocm_17_malformed_duration_is_refused():
    with pytest.raises(ConfigurationError, match="latency: "):
        build(networks={"west": {"latency": "soon"}})
