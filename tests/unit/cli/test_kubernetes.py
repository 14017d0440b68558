# SPDX-License-Identifier: Apache-2.0
"""The pool in a cluster that a command line and an environment name."""

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from epp.app import KubernetesSettings, PoolChoice
from epp.cli.input_output import is_in_files, read_file_pool
from epp.cli.kubernetes import pool_title, read_kubernetes, read_pool_choice
from epp.cli.picker_flags import Serve
from epp.config import load_text
from epp.framework import ConfigurationError
from epp.framework.endpoint import LabelSelector
from epp.pool.discovery import PodTarget, PoolName

DISCOVERY = load_text(
    """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins: [{type: queue-scorer}, {type: file-discovery, parameters: {path: endpoints.yaml}}]
dataLayer: {discovery: {pluginRef: file-discovery}}
"""
)
PODS = {"endpoint_selector": "app=vllm", "endpoint_target_ports": "8000"}


@pytest.fixture(autouse=True)
def service_account(monkeypatch, tmp_path):
    """The file with the namespace of the pod, which is not there until a test writes it."""
    for name in ("NAMESPACE", "POD_NAME"):
        monkeypatch.delenv(name, raising=False)
    path = tmp_path / "namespace"
    monkeypatch.setattr("epp.cli.kubernetes._NAMESPACE_FILE", path)
    return path


def read(**flags) -> KubernetesSettings:
    return read_kubernetes(Serve(**flags), None)


def problem(**flags) -> str:
    with pytest.raises(ConfigurationError) as refused:
        read_kubernetes(Serve(**flags), None)
    return str(refused.value)


def test_pool_has_a_name_a_namespace_and_a_group_or_labels_and_ports():
    flags = {"pool_name": "p", "pool_namespace": "ns", "pool_group": "example.com"}
    assert read(**flags).source == PoolName("p", "ns", "example.com")
    assert read(pool_name="p", pool_group="").source == PoolName("p", "default", "inference.networking.k8s.io")
    flags = {"endpoint_selector": " app=vllm, a.b/tier = gold ,empty=", "endpoint_target_ports": "8000, 8001"}
    source = read(**flags).source
    assert (str(source.labels), source.ports) == ("app=vllm,a.b/tier=gold,empty=", (8000, 8001))
    text = "app==vllm,tier!=b,env in (x, y),zone notin (z),gpu,!old"
    source = read(endpoint_selector=text, endpoint_target_ports="8000").source
    assert source.selector == {"labelSelector": "app==vllm,tier!=b,env in (x,y),zone notin (z),gpu,!old"}


def test_namespace_is_that_of_the_flag_the_variable_the_pod_or_default(monkeypatch, service_account):
    assert read(pool_name="p").namespace == "default"
    service_account.write_text("of-the-pod\n")
    assert read(pool_name="p").namespace == "of-the-pod"
    monkeypatch.setenv("NAMESPACE", "of-the-variable")
    assert read(pool_name="p").namespace == read(**PODS).namespace == "of-the-variable"
    assert read(pool_name="p", pool_namespace="").namespace == "of-the-variable"
    assert read(pool_name="p", pool_namespace="of-the-flag").namespace == "of-the-flag"
    service_account.write_bytes(b"\xff")
    monkeypatch.delenv("NAMESPACE")
    assert read(pool_name="p").namespace == "default"


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({}, "no endpoints to pick from: give --endpoints host:port,... or a configuration with dataLayer.discovery; "),
        ({"pool_name": ""}, "no endpoints to pick from: "),
        ({"pool_name": "P"}, "--pool-name: 'P' is not the name of an object"),
        ({"pool_name": "p/../q"}, "--pool-name: 'p/../q' is not the name of an object"),
        ({"pool_name": "p", "pool_group": "a/b"}, "--pool-group: 'a/b' is not an API group: leave it out for "),
        ({"pool_name": "p", "pool_namespace": "a/b"}, "--pool-namespace: 'a/b' is not the name of a namespace"),
        ({"pool_name": "p", **PODS}, "--pool-name and --endpoint-selector cannot be combined: "),
        ({"pool_name": "p", "objects": "x", "kubeconfig": Path("k")}, "--objects has no effect with a pool in a cl"),
        ({"endpoint_selector": "a=b"}, "--endpoint-target-ports is missing: --endpoint-selector app=vllm "),
        ({"endpoint_target_ports": "8000"}, "--endpoint-selector is missing: --endpoint-selector app=vllm "),
        ({**PODS, "endpoint_selector": " "}, "--endpoint-selector is empty, and would select everything: w"),
        ({**PODS, "endpoint_selector": "x,a b=c"}, "--endpoint-selector: 'x,a b=c' is not a label selector, because"),
        ({**PODS, "endpoint_selector": "a in b"}, "--endpoint-selector: 'a in b' is not a label selector, because "),
        ({**PODS, "endpoint_selector": "a=b=c"}, "--endpoint-selector: 'a=b=c' is not a label selector, because "),
        ({**PODS, "endpoint_target_ports": "x"}, "--endpoint-target-ports: 'x': write ports from 1 to 65535, with "),
        ({**PODS, "endpoint_target_ports": "0"}, "--endpoint-target-ports: '0': write ports from 1 to 65535, with "),
        ({**PODS, "endpoint_target_ports": "65536"}, "--endpoint-target-ports: '65536': write ports from 1 to 65535"),
        ({**PODS, "endpoint_target_ports": "1,1"}, "--endpoint-target-ports: '1,1': write one to eight ports, each "),
        ({**PODS, "endpoint_target_ports": ","}, "--endpoint-target-ports: ',': write one to eight ports, each once"),
        ({**PODS, "endpoint_target_ports": "1,2,3,4,5,6,7,8,9"}, "--endpoint-target-ports: '1,2,3,4,5,6,7,8,9': write"),
    ],
)
def test_mistake_is_one_sentence(flags, said):
    assert problem(**flags).startswith(said)


def test_beside_endpoints_of_other_sources_the_pool_is_a_name_alone_and_a_selector_is_refused():
    assert read_kubernetes(Serve(endpoints="127.0.0.1:1", pool_name="p"), None) is None
    assert read_kubernetes(Serve(pool_name="p"), DISCOVERY) is None
    assert problem(endpoints="127.0.0.1:1", **PODS) == (
        "--endpoint-selector has no effect with --endpoints: leave one of them out"
    )
    with pytest.raises(ConfigurationError, match=r"no effect with dataLayer\.discovery of the configuration"):
        read_kubernetes(Serve(**PODS), DISCOVERY)


def test_flags_of_a_pool_in_a_cluster_are_a_warning_where_they_have_no_effect(tmp_path):
    flags = Serve(endpoints="127.0.0.1:1", pool_namespace="x", pool_group="y", kubeconfig=tmp_path)
    with capture_logs() as logs:
        read_kubernetes(flags, None)
    assert [each["flag"] for each in logs] == ["--pool-namespace", "--pool-group", "--kubeconfig"]
    assert {each["event"] for each in logs} == {"flag has no effect"}
    with capture_logs() as logs:
        read_kubernetes(Serve(objects="x.yaml", pool_group="y", pool_namespace="z"), None)
    assert [each["flag"] for each in logs] == ["--pool-group"]


@pytest.mark.parametrize(
    ("pod", "title"), [("vllm-epp-7c9d8f6b5d-x2x7k", "vllm-epp"), ("by-hand", "by-hand"), ("", "default")]
)
def test_title_of_a_pool_of_pods_is_that_of_the_deployment(monkeypatch, pod, title):
    monkeypatch.setenv("POD_NAME", pod)
    assert pool_title(Serve(**PODS)) == title
    assert pool_title(Serve(pool_name="p")) == "p"
    assert pool_title(Serve(endpoints="127.0.0.1:1")) == "default"


def test_pods_in_files_are_the_pool_where_nothing_else_names_endpoints(tmp_path):
    assert read_kubernetes(Serve(objects="x.yaml", pool_name="p"), None) is None
    assert read_kubernetes(Serve(objects="x.yaml", **PODS), None) is None
    assert is_in_files(Serve(objects="x.yaml"), None)
    assert not is_in_files(Serve(objects="x.yaml", endpoints="127.0.0.1:1"), None)
    assert not is_in_files(Serve(objects="x.yaml"), DISCOVERY)
    assert not is_in_files(Serve(objects="x.yaml", kubeconfig=tmp_path), None)
    assert not is_in_files(Serve(), None)


def test_flags_select_among_the_pods_in_files(tmp_path):
    named = read_file_pool(Serve(objects=str(tmp_path), pool_name="p", pool_namespace="llm"))
    assert (named.parameters.pool, named.parameters.namespace) == ("p", "llm")
    labels = LabelSelector.parse("app in (vllm,sglang),!old")
    labelled = read_file_pool(Serve(objects=str(tmp_path)), PodTarget(labels, (8000,)))
    assert (labelled.parameters.labels, labelled.parameters.target_ports) == (labels, (8000,))
    with pytest.raises(ConfigurationError, match=r"--objects: there is neither file nor directory 'nowhere'"):
        read_file_pool(Serve(objects="nowhere"))


def test_several_pools_have_names_or_labels():
    assert read_pool_choice(Serve(pool_name="p")) is None
    named = PoolChoice(namespace="ns", names=frozenset({"a", "b"}))
    assert read_pool_choice(Serve(pool_name="a, b", pool_namespace="ns")) == named
    labelled = read_pool_choice(Serve(pool_selector="team in (x,y)", pool_group="example.com"))
    assert labelled == PoolChoice(namespace="default", labels=LabelSelector.parse("team in (x,y)"), group="example.com")
    assert labelled.selector == {"labelSelector": "team in (x,y)"}


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (
            {"pool_name": "a,b", "pool_selector": "x=y"},
            "--pool-name and --pool-selector cannot be combined: give one",
        ),
        ({"pool_name": "a,B"}, "--pool-name: 'B' is not the name of an object"),
        ({"pool_selector": "a=b=c"}, "--pool-selector: "),
        ({"pool_selector": "a=b", "workers": 2}, "--workers is for one pool: leave it out, or run a picker for each"),
        ({"pool_selector": "a=b", "objects": "files"}, "--objects is for one pool"),
        ({"pool_selector": "a=b", "endpoints": ["a:1"]}, "--endpoints is for one pool"),
        ({"pool_selector": "a=b", **PODS}, "--endpoint-selector is for one pool"),
        ({"pool_selector": "a=b", "pool_config_dir": Path("pools")}, "--pool-config-dir needs --config-file"),
        ({"pool_name": "a", "pool_config_dir": Path("pools")}, "--pool-config-dir is for several pools: give"),
    ],
)
def test_several_pools_need_flags_that_agree(flags, complaint):
    with pytest.raises(ConfigurationError) as refused:
        read_pool_choice(Serve(**flags))
    assert str(refused.value).startswith(complaint)
