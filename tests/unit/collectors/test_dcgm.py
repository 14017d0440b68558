# SPDX-License-Identifier: Apache-2.0
import math
from pathlib import Path

import msgspec
import pytest

from epp.framework import Endpoint
from epp.framework.datalayer import Feed, PageError
from epp.framework.snapshot import GPU_UTILIZATION
from epp.pool.collectors.sources.http import DcgmDataSource, DcgmExtractor, DcgmSourceParameters

DATA = Path(__file__).parents[2] / "data" / "dcgm"
PODS, NO_PODS, MIG = ((DATA / f"metrics-{name}.txt").read_bytes() for name in ("pods", "no-pods", "mig"))


def pod(name: str, namespace: str = "serving") -> Endpoint:
    return Endpoint(name, "10.0.0.1", 8000, namespace=namespace)


def source(**parameters: object) -> DcgmDataSource:
    return DcgmDataSource(msgspec.convert(parameters, DcgmSourceParameters))


def utilization(page: bytes, endpoint: Endpoint) -> float:
    return DcgmExtractor().extract(page, endpoint).columns[GPU_UTILIZATION]


RENAMED = (
    b'DCGM_FI_DEV_GPU_UTIL{exported_namespace="serving",exported_pod="a",namespace="gpu",pod="dcgm-x"} 10\n'
    b'DCGM_FI_DEV_GPU_UTIL{exported_namespace="serving",exported_pod="b",namespace="gpu",pod="dcgm-x"} 20\n'
)


@pytest.mark.parametrize(
    ("page", "endpoint", "expected"),
    [
        (PODS, pod("llama-0"), 0.72),  # its GPUs are at 35 and 72 percent
        (PODS, pod("llama-1"), 0.9),
        (PODS, pod("llama-0", "research"), 1.0),
        (PODS, pod("llama-1-rank-3"), 0.9),  # one of several ports of the pod
        (PODS, pod("llama-2"), math.nan),  # it has no GPU there
        (NO_PODS, pod("anyone", "anywhere"), 0.82),
        (RENAMED, pod("a"), 0.1),  # by a Prometheus that has labels of these names itself
        (MIG, pod("llama-0"), 0.275),  # a MIG instance counts by its engine activity
        (MIG, pod("llama-1"), 0.4),  # a whole GPU
    ],
)
def test_busiest_gpu_of_the_pod_counts_or_of_all_where_none_has_a_pod(page, endpoint, expected):
    assert utilization(page, endpoint) == pytest.approx(expected, nan_ok=True)


@pytest.mark.parametrize("value", ["NaN", "9223372036854775794", "-1"])
def test_gpu_that_was_not_measured_says_nothing(value):
    page = b'DCGM_FI_DEV_GPU_UTIL{gpu="0"} ' + value.encode() + b"\n"
    assert math.isnan(utilization(page, pod("a")))
    assert utilization(page + b'DCGM_FI_DEV_GPU_UTIL{gpu="1"} 5\n', pod("a")) == 0.05


def test_page_of_something_else_is_refused():
    with pytest.raises(PageError, match="for endpoint serving/a has neither DCGM_FI_DEV_GPU_UTIL nor"):
        utilization(b"vllm:num_requests_waiting 3\n", pod("a"))


async def test_exporter_is_asked_at_the_address_of_the_endpoint_and_is_something_beside_it(server):
    one = source(port=server.port)
    await one.fetch(Endpoint("e", "127.0.0.1", 8000))
    await one.close()
    assert server.asked[0].path == "/metrics"
    assert (source().port, source().interval_seconds) == (9400, 1.0)
    assert not Feed(source(), (DcgmExtractor(),)).asks(pod("a"))


async def test_exporter_is_asked_at_the_address_of_the_node_where_that_is_wanted(server):
    one = source(port=server.port, useNodeAddress=True)
    there = Endpoint("e", "192.0.2.1", server.port, node_address="127.0.0.1")
    await one.fetch(there)
    assert not Feed(one, (DcgmExtractor(),)).asks(there)
    unknown = Endpoint("e", "127.0.0.1", 8000)
    await one.fetch(unknown)
    await one.close()
    assert len(server.asked) == 2
