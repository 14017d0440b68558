# SPDX-License-Identifier: Apache-2.0
"""The lease that the flags of a replica, and its pod, name."""

import pytest

from epp.cli.kubernetes import read_kubernetes
from epp.cli.picker_flags import Serve
from epp.framework import ConfigurationError
from epp.kube.leader_election import LeaseSettings

SELECTOR = {"endpoint_selector": "app=vllm", "endpoint_target_ports": "8000"}


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    monkeypatch.delenv("POD_NAME", raising=False)
    monkeypatch.setenv("NAMESPACE", "llm")


def settings(**flags):
    return read_kubernetes(Serve(ha_enable_leader_election=True, **flags), None)


def test_replicas_share_the_lease_of_their_pool_or_deployment_if_the_flag_is_there(monkeypatch):
    expected = LeaseSettings(name="epp-llm-vllm-qwen.llm-d.ai", namespace="llm", seconds=15.0, retry_seconds=2.0)
    assert settings(pool_name="vllm-qwen").lease == expected
    monkeypatch.setenv("POD_NAME", "epp-7d4b9c6f5-x2x4z")
    assert settings(**SELECTOR).lease == LeaseSettings(name="epp-llm-epp.llm-d.ai", namespace="llm")
    assert read_kubernetes(Serve(pool_name="pool"), None).lease is None


def test_replica_is_named_for_its_pod_and_anew_at_each_start(monkeypatch):
    monkeypatch.setenv("POD_NAME", "epp-7d4b9c6f5-x2x4z")
    names = {settings(pool_name="pool").replica for _ in range(2)}
    assert len(names) == 2
    assert all(name.startswith("epp-7d4b9c6f5-x2x4z_") for name in names)


@pytest.mark.parametrize("pod", ["", "epp-0", "../../pods"])
def test_replica_that_does_not_know_its_deployment_is_refused(monkeypatch, pod):
    monkeypatch.setenv("POD_NAME", pod)
    with pytest.raises(ConfigurationError, match=r"POD_NAME is '.*', not the name of a pod of a Deployment"):
        settings(**SELECTOR)


def test_pool_or_deployment_with_a_name_that_no_lease_can_have_is_refused(monkeypatch):
    with pytest.raises(ConfigurationError, match="cannot be the name of a lease: choose a shorter name"):
        settings(pool_name="p" * 250)
    monkeypatch.setenv("POD_NAME", "a/b-7d4b9c6f5-x2x4z")
    with pytest.raises(ConfigurationError, match="cannot be the name of a lease"):
        settings(**SELECTOR)


@pytest.mark.parametrize("flags", [{"endpoints": ["127.0.0.1:1"], "pool_name": "pool"}, {}])
def test_without_a_pool_in_kubernetes_it_is_refused_with_the_remedy(flags):
    with pytest.raises(ConfigurationError, match=r"needs a pool in Kubernetes.*leave it out, or give --pool-name"):
        settings(**flags)
