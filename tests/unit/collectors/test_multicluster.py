# SPDX-License-Identifier: Apache-2.0
"""Metrics pages of the routers of clusters: where they are, and what is read of them."""

import math
import ssl
from dataclasses import replace

import msgspec
import pytest

from epp.framework import Endpoint, SystemClock
from epp.framework.datalayer import Feed, PageError
from epp.framework.endpoint import PagePlace
from epp.framework.snapshot import ANSWERS, CLUSTER_KV_USAGE, CLUSTER_QUEUE, REACHABLE
from epp.pool.collectors.engine_metrics import (
    MultiClusterExtractorParameters,
    MultiClusterMetricsDataSource,
    MultiClusterMetricsExtractor,
    MultiClusterSourceParameters,
)
from epp.routing.datastore import Datastore

CLUSTER = Endpoint("a", "192.0.2.1", 80)
KV, QUEUE = "llm_d_epp_average_kv_cache_utilization", "llm_d_epp_average_queue_size"


def source(**parameters: object) -> MultiClusterMetricsDataSource:
    return MultiClusterMetricsDataSource(msgspec.convert(parameters, MultiClusterSourceParameters))


def read(page: str, **parameters: object):
    extractor = MultiClusterMetricsExtractor(msgspec.convert(parameters, MultiClusterExtractorParameters))
    report = extractor.extract(page.encode(), CLUSTER)
    return report.columns[CLUSTER_KV_USAGE], report.columns[CLUSTER_QUEUE], report.problems


async def test_page_is_fetched_where_the_endpoint_says_it_is(server):
    one = source(scheme="http")
    elsewhere = Endpoint("a", "192.0.2.1", 80, metrics=PagePlace("127.0.0.1", server.port))
    await one.fetch(elsewhere)
    assert server.asked[0].path == "/metrics"
    assert not Feed(one, ()).asks(elsewhere)  # the gateway is another server, which is probed
    assert Feed(one, ()).asks(CLUSTER)
    assert one.place(CLUSTER) == PagePlace("192.0.2.1", 80)


def test_pages_are_fetched_over_https_with_verified_certificates_by_default():
    attempt = source().client_for(replace(CLUSTER, metrics=PagePlace("192.0.2.2", 9090, "router.b"))).attempt
    assert attempt.tls is not None
    assert attempt.tls.verify_mode is ssl.CERT_REQUIRED
    assert attempt.place == PagePlace("192.0.2.2", 9090, "router.b")
    assert b"GET /metrics HTTP/1.1\r\nHost: router.b:9090\r\n" in attempt.request
    assert source().most_bytes == 8 * 2**20


async def test_polls_follow_the_page_of_a_cluster_to_another_address(server, collecting, until):
    server.page = f"{KV} 0.25\n{QUEUE} 3\n".encode()
    store = Datastore(SystemClock())
    cluster = Endpoint("a", "127.0.0.1", 1, metrics=PagePlace("127.0.0.1", 2))  # nothing listens at either port
    store.replace([cluster])
    await collecting(store, Feed(source(scheme="http", interval="10ms"), (MultiClusterMetricsExtractor(),)))
    await until(lambda: store.snapshot().column(REACHABLE).item(0) != ANSWERS)  # it is the gateway that is probed
    store.replace([replace(cluster, metrics=PagePlace("127.0.0.1", server.port))])
    await until(lambda: store.snapshot().column(CLUSTER_QUEUE).item(0) == 3)


def test_means_of_a_cluster_are_read():
    page = f'# HELP {KV} x\n{KV}{{name="pool"}} 0.25\n{QUEUE}{{name="pool"}} 3.5\n'
    assert read(page) == (0.25, 3.5, ())
    page += f'{QUEUE}{{name="other"}} 7\n'
    assert read(page)[1] == 7
    assert read(page, queueSizeMetric=f"{QUEUE}{{name=pool}}")[1] == 3.5
    assert read("a 0.5\nb 2\n", kvCacheUtilizationMetric="a", queueSizeMetric="b") == (0.5, 2, ())


@pytest.mark.parametrize(
    ("page", "problem"),
    [
        (f"{KV} 0.5\n", f"{QUEUE} is missing"),
        (f"{KV} 0.5\n{QUEUE} -1\n", f"{QUEUE} is -1"),
        (f"{KV} 0.5\n{QUEUE} 1e99\n", f"{QUEUE} is 1e+99"),
    ],
)
def test_number_that_is_missing_or_impossible_is_unknown_and_the_other_counts(page, problem):
    usage, queue, problems = read(page)
    assert usage == 0.5
    assert math.isnan(queue)
    assert problems == (problem,)


def test_page_of_something_else_is_refused():
    with pytest.raises(PageError, match=f"the page for endpoint default/a has neither {KV} nor {QUEUE}") as refused:
        read("vllm:num_requests_waiting 3\n")
    assert "metricsAddress" in refused.value.remedy
    with pytest.raises(msgspec.ValidationError, match="queueSizeMetric: 'a b' is not a metric spec"):
        read("", queueSizeMetric="a b")
