# SPDX-License-Identifier: Apache-2.0
"""What flags name: configurations, endpoints, addresses."""

import re

import pytest

from epp.cli.input_output import read_bind_address, read_endpoints, read_ignored_headers, read_policies
from epp.framework import ConfigurationError, Headers


@pytest.mark.parametrize(
    ("text", "host"), [("127.0.0.1", "127.0.0.1"), ("::", "::"), ("[::1]", "::1"), ("localhost", "127.0.0.1")]
)
def test_bind_address_is_an_ip_address(text, host):
    assert read_bind_address(text) == host


@pytest.mark.parametrize("text", ["", "127.0.0.1:9002", "[::1]:9002", "node-1", "0.0.0"])
def test_other_bind_address_is_refused_with_the_remedy(text):
    problem = f"--bind-address: {text!r} is not an IP address: write one of this machine, without a port"
    with pytest.raises(ConfigurationError, match=re.escape(problem)):
        read_bind_address(text)


def test_endpoints_may_be_named_several_times():
    targets = read_endpoints(["a:1,b:2", "c:3 d:4"]).resolver.targets
    assert [target.name for target in targets] == ["a:1", "b:2", "c:3", "d:4"]
    assert read_endpoints(None) is None
    with pytest.raises(ConfigurationError, match=r"^--endpoints: endpoint 3: 'c' has no port"):
        read_endpoints(["a:1,b:2", "c"])


def test_objects_are_those_of_all_paths_for_the_pool_if_it_has_a_name(tmp_path):
    for name in ("a", "b"):
        text = f"{{apiVersion: llm-d.ai/v1alpha2, kind: InferenceObjective, metadata: {{name: {name}}}, "
        (tmp_path / f"{name}.yaml").write_text(f"{text}spec: {{priority: 1, poolRef: {{name: {name}}}}}}}")
    paths = f"{tmp_path}/a.yaml, {tmp_path}/b.yaml"
    assert read_policies(paths, None).policies.priorities == {"a": 1, "b": 1}
    assert read_policies(paths, "a").policies.priorities == {"a": 1}
    assert read_policies("", None) is None


def test_no_header_is_ignored_unless_one_is_named_and_records_are_for_trusted_gateways_alone():
    assert read_ignored_headers("", "") is None
    assert read_ignored_headers("objective, header:x-mine", "10.0.0.0/8,::1") is not None
    ignored = read_ignored_headers("", "10.0.0.0/8")
    assert ignored.trusts("ipv4:10.1.2.3")
    assert not ignored.trusts("ipv4:11.1.2.3")
    headers = Headers([("x-gateway-decision-record", "true"), ("x-llm-d-inference-objective", "o")])
    left, out = ignored.left_out(headers)
    assert (list(left), out) == (["x-llm-d-inference-objective"], ["x-gateway-decision-record"])


@pytest.mark.parametrize(
    ("names", "gateways", "problem"),
    [
        ("objectiv", "", "--ignore-client-headers: 'objectiv' is not a group of headers: write model-rewrite, "),
        ("all", "10.0.0.0/40", "--trusted-gateways: '10.0.0.0/40' is not a network: "),
        ("all", "my-gateway", "--trusted-gateways: 'my-gateway' is not a network: "),
    ],
)
def test_flags_of_ignored_headers_that_cannot_be_are_refused_with_the_remedy(names, gateways, problem):
    with pytest.raises(ConfigurationError, match=f"^{re.escape(problem)}"):
        read_ignored_headers(names, gateways)
