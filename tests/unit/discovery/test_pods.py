# SPDX-License-Identifier: Apache-2.0
"""Endpoints of one pod: one for each port that it serves on, and none unless it can take requests."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.framework.endpoint import LabelSelector
from epp.kube.objects.core import Pod
from epp.kube.objects.decode import decode_object
from epp.pool.discovery.pods import ACTIVE_PORTS, PodTarget, endpoints_of

CURRENT, FORMER = ACTIVE_PORTS
READY = ({"type": "Ready", "status": "True"},)
PORTS = (8000, 8001, 8002)


def pod(*, metadata=None, spec=None, **status) -> Pod:
    document = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "a", "namespace": "llm", "uid": "u1", "labels": {"app": "vllm"}, **(metadata or {})},
        "spec": {"nodeName": "n1", "containers": [], **(spec or {})},
        "status": {"phase": "Running", "podIP": "10.0.0.1", "conditions": READY, **status},
    }
    found = decode_object(document)
    assert isinstance(found, Pod)
    return found


def addresses(one: Pod, ports: tuple[int, ...] = PORTS) -> dict[str, str]:
    return {endpoint.name: endpoint.hostport for endpoint in endpoints_of(one, ports)}


def test_annotations_with_ports_of_kv_events_are_labels_of_the_endpoint():
    annotations = {"llm-d.ai/kv-events-port": "6000", "llm-d.ai/kv-replay-port": "x", "other": "1"}
    labels = {"app": "vllm", "llm-d.ai/kv-events-port": "7000"}
    (endpoint,) = endpoints_of(pod(metadata={"annotations": annotations, "labels": labels}), (8000,))
    expected = {"app": "vllm", "llm-d.ai/kv-events-port": "6000", "llm-d.ai/kv-replay-port": "x"}
    assert endpoint.labels == expected


def test_port_of_the_pool_is_an_endpoint_of_its_own():
    assert addresses(pod()) == {"a-rank-0": "10.0.0.1:8000", "a-rank-1": "10.0.0.1:8001", "a-rank-2": "10.0.0.1:8002"}


@pytest.mark.parametrize(
    "status",
    [
        {"conditions": ()},
        {"conditions": ({"type": "Ready", "status": "False"},)},
        {"conditions": ({"type": "Ready", "status": "Unknown"},)},
        {"conditions": ({"type": "ContainersReady", "status": "True"},)},
        {"phase": "Succeeded"},
        {"phase": "Failed"},
        {"podIP": ""},
        {"podIP": None},
        {"podIP": "pod.example.com"},
        {"podIP": "10.0.0.1:8000"},
        {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}},
        {"metadata": {"deletionTimestamp": "soon"}},
    ],
)
def test_pod_that_cannot_take_requests_has_no_endpoints(status):
    assert addresses(pod(**status)) == {}


@pytest.mark.parametrize(
    ("annotations", "ranks"),
    [
        ({CURRENT: "8001"}, [1]),
        ({CURRENT: " 8002 , 8000 "}, [0, 2]),
        ({FORMER: "8001"}, [1]),
        ({CURRENT: "8000", FORMER: "8001"}, [0]),
        ({CURRENT: "", FORMER: "8001"}, []),
        ({CURRENT: "9000"}, []),
        ({CURRENT: "8000;8001"}, []),
        ({CURRENT: "8000,x,-8001,8001.0,٨٠٠٢"}, [0]),
        ({CURRENT: "0" * 100_000}, []),
        ({"other": "8001"}, [0, 1, 2]),
    ],
)
def test_annotation_names_the_ports_that_the_pod_serves_on_and_ranks_stay(annotations, ranks):
    assert list(addresses(pod(metadata={"annotations": annotations}))) == [f"a-rank-{rank}" for rank in ranks]


@given(st.text(), st.text(), st.dictionaries(st.text(), st.text()))
def test_any_text_gives_endpoints_or_none(address, annotation, labels):
    metadata = {"annotations": {CURRENT: annotation}, "labels": labels}
    assert len(endpoints_of(pod(metadata=metadata, podIP=address), PORTS)) <= 3


def test_endpoint_has_the_address_of_its_node():
    assert [one.node_address for one in endpoints_of(pod(hostIP="192.168.0.7"), (8000,))] == ["192.168.0.7"]
    assert [one.node_address for one in endpoints_of(pod(hostIP="node-7"), (8000,))] == [""]


def test_selector_is_the_same_whatever_the_order_of_the_labels():
    one, other = (LabelSelector.of(labels) for labels in ({"b": "2", "a": "1"}, {"a": "1", "b": "2"}))
    assert one == other
    assert PodTarget(one, (1,)).selector == {"labelSelector": "a=1,b=2"}
