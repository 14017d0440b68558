# SPDX-License-Identifier: Apache-2.0
"""Which pods are endpoints, of a pool, with labels or with accelerators, and at which ports."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.framework import ConfigurationError
from epp.framework.endpoint import LabelSelector
from epp.kube.objects.core import Pod
from epp.kube.objects.decode import decode_object
from epp.pool.discovery.pods import (
    ACTIVE_PORTS,
    PodChoice,
    PodTarget,
    choose,
    endpoints_of,
    requests_accelerators,
    serving_port,
)
from tests.support.kube.manifests import manifest, pool

READY = ({"type": "Ready", "status": "True"},)
GPU = {"limits": {"nvidia.com/gpu": "1"}}


def pod(name="a", *, containers=None, labels=None, metadata=None, namespace="llm", spec=None, **status):
    metadata = {"uid": f"u-{name}", "labels": labels or {}, **(metadata or {})}
    containers = containers or [{"name": "vllm", "resources": GPU, "ports": [{"containerPort": 8000}]}]
    spec = {"nodeName": "n1", "containers": containers, **(spec or {})}
    status = {"phase": "Running", "podIP": "10.0.0.1", "conditions": READY, **status}
    return decode_object(manifest("v1", "Pod", name, namespace, metadata, spec=spec, status=status))


def inference_pool(name, *, namespace="llm", ports=(8000,), **labels):
    return decode_object(pool(name, namespace=namespace, selector=labels, ports=ports))


def node(name, boot_id):
    return decode_object(manifest("v1", "Node", name, status={"nodeInfo": {"bootID": boot_id}}))


def hostports(objects, **choice):
    return {endpoint.id: endpoint.hostport for endpoint in choose(objects, PodChoice(**choice)).endpoints}


def test_pods_that_request_accelerators_are_endpoints_as_from_the_api_server():
    router = pod("router", containers=[{"name": "nginx"}], podIP="10.0.0.9")
    found = choose([pod("a", labels={"app": "vllm"}), router, node("n1", "b1")], PodChoice(cluster="east"))
    (endpoint,) = found.endpoints
    assert (endpoint.id, endpoint.hostport, endpoint.node) == ("llm/a-rank-0", "10.0.0.1:8000", "n1")
    assert (endpoint.uid, endpoint.boot_id, endpoint.cluster) == ("u-a", "b1", "east")
    assert endpoint.labels == {"app": "vllm"}


def test_inference_pool_in_the_files_has_selector_and_ports():
    pods = [pod("a", labels={"app": "x"}), pod("b", labels={"app": "y"}), pod("c", labels={"app": "x"}, namespace="z")]
    assert hostports([*pods, inference_pool("p", ports=(9000, 9001), app="x")]) == {
        "llm/a-rank-0": "10.0.0.1:9000",
        "llm/a-rank-1": "10.0.0.1:9001",
    }


def test_one_of_several_pools_has_to_be_named():
    pods = [pod("a", labels={"app": "x"}), pod("b", labels={"app": "y"})]
    objects = [*pods, inference_pool("p", app="x"), inference_pool("q", ports=(8001,), app="y")]
    with pytest.raises(ConfigurationError, match="several InferencePools, llm/p, llm/q: name one of them"):
        choose(objects, PodChoice())
    with pytest.raises(ConfigurationError, match="no InferencePool 'r': there are llm/p, llm/q"):
        choose(objects, PodChoice(pool="r"))
    assert hostports(objects, pool="q") == {"llm/b-rank-0": "10.0.0.1:8001"}
    assert len(hostports(objects, every_pool=True)) == 2


def test_labels_and_ports_can_be_given_without_a_pool():
    pods = [pod("a", labels={"app": "x"}), pod("b", labels={"app": "y"}, namespace="other")]
    assert hostports(pods, labels=LabelSelector.parse("app in (x)"), ports=(7000,)) == {"llm/a-rank-0": "10.0.0.1:7000"}
    assert hostports(pods, labels=LabelSelector.parse("app in (x)")) == {"llm/a-rank-0": "10.0.0.1:8000"}
    assert hostports(pods, namespace="other") == {"other/b-rank-0": "10.0.0.1:8000"}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"conditions": ()}, "it is not ready"),
        ({"conditions": ({"type": "Ready", "status": "False"},)}, "it is not ready"),
        ({"conditions": ({"type": "Ready", "status": "Unknown"},)}, "it is not ready"),
        ({"conditions": ({"type": "ContainersReady", "status": "True"},)}, "it is not ready"),
        ({"phase": "Succeeded"}, "its phase is Succeeded"),
        ({"phase": "Failed"}, "its phase is Failed"),
        ({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}, "it is terminating"),
        ({"metadata": {"deletionTimestamp": "soon"}}, "it is terminating"),
        ({"podIP": ""}, "it has no IP address"),
        ({"podIP": None}, "it has no IP address"),
        ({"podIP": "pod.example.com"}, "it has no IP address"),
        ({"podIP": "10.0.0.1:8000"}, "it has no IP address"),
    ],
)
def test_pod_that_cannot_take_requests_is_left_out_and_said(change, reason):
    found = choose([pod("a", **change), pod("b")], PodChoice())
    assert [endpoint.name for endpoint in found.endpoints] == ["b-rank-0"]
    assert found.remarks == (f"no endpoint: llm/a: {reason}",)
    assert addresses(pod(**change)) == {}


def test_pods_of_jobs_and_workers_of_a_group_do_not_serve():
    job = pod("train", metadata={"ownerReferences": [{"kind": "Job", "name": "train"}]})
    leader = pod("lws-0", labels={"leaderworkerset.sigs.k8s.io/worker-index": "0"})
    worker = pod("lws-0-1", labels={"leaderworkerset.sigs.k8s.io/worker-index": "1"})
    assert list(hostports([job, leader, worker])) == ["llm/lws-0-rank-0"]


def test_claims_are_accelerators_too():
    claims = {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "h100"}]}
    assert requests_accelerators(pod("a", containers=[{"name": "vllm"}], spec=claims))


@pytest.mark.parametrize(
    ("container", "port"),
    [
        ({"ports": [{"containerPort": 9000}]}, 9000),
        ({"ports": [{"containerPort": 9000}, {"containerPort": 9001, "name": "http"}]}, 9001),
        ({"ports": [{"containerPort": 9400, "name": "metrics"}, {"containerPort": 8000}]}, 8000),
        ({"ports": [{"containerPort": 1}, {"containerPort": 2}], "args": ["--port=2"]}, 2),
        ({"ports": [{"containerPort": 53, "protocol": "UDP"}], "args": ["--port", "8100"]}, 8100),
        ({"command": ["vllm", "serve", "m", "--port", "8100"]}, 8100),
        ({"args": ["--port", 8100]}, 8100),
        ({"command": ["sh", "-c"], "args": ["exec vllm serve m --port 8200 --tp 2"]}, 8200),
        ({"args": ["--port", "$(PORT)"]}, None),
        ({"args": ["--port", "99999"]}, None),
        ({"args": "--port 1", "ports": {"containerPort": 1}}, None),
        ({}, None),
    ],
)  # fmt: skip
def test_port_is_that_of_the_container_or_its_argument(container, port):
    sidecar = {"name": "proxy", "ports": [{"containerPort": 15001}]}
    one = pod("a", containers=[sidecar, {"name": "vllm", "resources": GPU, **container}])
    assert serving_port(one) == port


anything = st.recursive(
    st.none() | st.booleans() | st.integers(-1, 70000) | st.floats() | st.sampled_from(["--port", "--port=1", "8000"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["containerPort", "name", "protocol"]), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(ports=anything, args=anything, command=anything)
def test_pod_has_a_port_whatever_is_written_in_its_containers(ports, args, command):
    one = pod("a", containers=[{"name": "vllm", "ports": ports, "args": args, "command": command}])
    port = serving_port(one)
    assert port is None or 0 < port < 2**16


def test_assumed_ports_are_said():
    (remark,) = choose([pod("a", containers=[{"name": "vllm", "resources": GPU}])], PodChoice()).remarks
    assert remark.startswith("llm/a: there is neither a containerPort nor an argument --port")
    assert "port 8000 is assumed" in remark


CURRENT, FORMER = ACTIVE_PORTS
PORTS = (8000, 8001, 8002)


def addresses(one: Pod) -> dict[str, str]:
    return {endpoint.name: endpoint.hostport for endpoint in endpoints_of(one, PORTS)}


def test_annotations_with_ports_of_kv_events_are_labels_of_the_endpoint():
    annotations = {"llm-d.ai/kv-events-port": "6000", "llm-d.ai/kv-replay-port": "x", "other": "1"}
    labels = {"app": "vllm", "llm-d.ai/kv-events-port": "7000"}
    (endpoint,) = endpoints_of(pod(metadata={"annotations": annotations}, labels=labels), (8000,))
    expected = {"app": "vllm", "llm-d.ai/kv-events-port": "6000", "llm-d.ai/kv-replay-port": "x"}
    assert endpoint.labels == expected


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


@pytest.mark.parametrize(("host_ip", "address"), [("192.168.0.7", "192.168.0.7"), ("node-7", "")])
def test_endpoint_has_the_address_of_its_node(host_ip, address):
    assert [one.node_address for one in endpoints_of(pod(hostIP=host_ip), (8000,))] == [address]


def test_selector_is_the_same_whatever_the_order_of_the_labels():
    one, other = (LabelSelector.of(labels) for labels in ({"b": "2", "a": "1"}, {"a": "1", "b": "2"}))
    assert one == other
    assert PodTarget(one, (1,)).selector == {"labelSelector": "a=1,b=2"}
