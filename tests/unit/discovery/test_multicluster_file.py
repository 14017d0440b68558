# SPDX-License-Identifier: Apache-2.0
"""Clusters in a file: names as addresses, and labels for the place of the metrics page."""

import pytest

from epp.framework import ConfigurationError
from epp.framework.endpoint import PagePlace
from epp.pool.discovery.endpoints_file import FileDiscovery, FileDiscoveryParameters, MultiClusterFileDiscovery

FILE = """\
endpoints:
- name: a
  address: gw.cluster-a.example.com
  port: "443"
  labels: {metricsAddress: epp.a.example.com, metricsPort: "9090"}
- {name: b, address: "2001:db8::1", port: "80", labels: {metricsAddress: "2001:db8::2"}}
- {name: c, address: 10.0.0.3, port: "80", labels: {metricsPort: "9090"}}
- {name: d, address: gw.cluster-d.example.com, port: "80"}
"""


@pytest.fixture
def clusters(tmp_path, names):
    def clusters(text: str = FILE, cls: type[FileDiscovery] = MultiClusterFileDiscovery) -> FileDiscovery:
        path = tmp_path / "clusters.yaml"
        path.write_text(text)
        return cls(FileDiscoveryParameters(path=str(path)), lookup=names)

    names.table = {
        "gw.cluster-a.example.com": ["10.0.0.1"],
        "epp.a.example.com": ["10.0.1.1"],
        "gw.cluster-d.example.com": ["10.0.0.4"],
    }
    return clusters


async def test_names_become_addresses_and_labels_the_place_of_the_metrics(clusters, pool):
    await clusters().start(pool)
    assert pool.hostports == {"a": "10.0.0.1:443", "b": "[2001:db8::1]:80", "c": "10.0.0.3:80", "d": "10.0.0.4:80"}
    assert {each.name: each.metrics for each in pool.endpoints} == {
        "a": PagePlace("10.0.1.1", 9090, "epp.a.example.com"),
        "b": PagePlace("2001:db8::2", 80),
        "c": PagePlace("10.0.0.3", 9090),
        "d": None,
    }


async def test_name_of_a_page_that_does_not_resolve_yet_leaves_the_cluster_in_the_pool(clusters, pool, names):
    del names.table["epp.a.example.com"]
    discovery = clusters()
    await discovery.start(pool)
    assert pool.endpoints[0].metrics == PagePlace("epp.a.example.com", 9090)
    names.table["epp.a.example.com"] = ["10.0.1.1"]
    await discovery.resolver.refresh(pool)
    assert pool.endpoints[0].metrics == PagePlace("10.0.1.1", 9090, "epp.a.example.com")
    names.table["epp.a.example.com"] = ["10.0.1.9"]
    await discovery.resolver.refresh(pool)
    assert pool.endpoints[0].metrics == PagePlace("10.0.1.9", 9090, "epp.a.example.com")


async def test_labels_of_other_lists_of_endpoints_are_only_labels(clusters, pool):
    await clusters(cls=FileDiscovery).start(pool)
    assert {each.metrics for each in pool.endpoints} == {None}


@pytest.mark.parametrize("labels", ['{metricsPort: "http"}', '{metricsAddress: "http://x"}', '{metricsPort: "70000"}'])
async def test_label_that_is_no_address_is_an_error_at_its_place(clusters, pool, labels):
    text = f"endpoints:\n- name: a\n  address: 10.0.0.1\n  port: 80\n  labels: {labels}\n"
    place = r"endpoints\[0\] 'a' \(line 5\): labels: metricsAddress or metricsPort: "
    with pytest.raises(ConfigurationError, match=place):
        await clusters(text).start(pool)
