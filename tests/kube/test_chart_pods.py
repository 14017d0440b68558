# SPDX-License-Identifier: Apache-2.0
"""The pods of the Helm chart: what they may do, how they end, how many there are, and who may call them."""

import pytest

from tests.support.kube.charts import FLAVOURS, RELEASE, container, kinds, one

NAME = f"{RELEASE}-epp"


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_containers_have_no_privileges(helm, flavour):
    for deployment in (each for each in helm.template(*FLAVOURS[flavour]) if each["kind"] == "Deployment"):
        pod = deployment["spec"]["template"]["spec"]
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["runAsUser"] > 0
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["automountServiceAccountToken"] is False
        for each in pod["containers"]:
            assert each["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert {"requests", "limits"} <= each["resources"].keys()
            if each["name"] != "vllm-render":  # the picker is ready, and serves, without it
                assert {"livenessProbe", "readinessProbe"} <= each.keys()


def test_only_the_picker_gets_a_token_of_the_api_server(helm):
    objects = helm.template(*FLAVOURS["sidecar"])
    mounted = {each: {m["name"] for m in container(objects, each)["volumeMounts"]} for each in ("epp", "envoy")}
    assert mounted == {"epp": {"config", "api-access"}, "envoy": {"envoy"}}


def test_probes_ask_for_names_that_the_picker_answers(helm):
    picker = container(helm.template(*FLAVOURS["gke"]))
    assert picker["livenessProbe"]["grpc"] == {"port": 9005, "service": "liveness"}
    assert picker["readinessProbe"]["grpc"] == {"port": 9005, "service": "readiness"}


def test_streams_may_end_within_the_grace_period(helm):
    deployment = one(helm.template("router.epp.terminationGracePeriodSeconds=70"), "Deployment")
    assert deployment["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] == 70
    assert "--drain-timeout=60s" in container([deployment])["args"]


def test_several_replicas_elect_a_leader_unless_told_otherwise(helm):
    elected = helm.template(*FLAVOURS["leader-election"])
    assert "--ha-enable-leader-election" in container(elected)["args"]
    assert "PodDisruptionBudget" not in kinds(elected)
    assert "lifecycle" not in container(elected)  # the lease is free at once
    rolling = one(elected, "Deployment")["spec"]["strategy"]["rollingUpdate"]
    assert rolling == {"maxSurge": "100%", "maxUnavailable": "100%"}
    together = helm.template(*FLAVOURS["leader-election"], "router.epp.flags.ha-enable-leader-election=false")
    assert "--ha-enable-leader-election" not in container(together)["args"]
    assert "--ha-enable-leader-election=false" in container(together)["args"]
    assert kinds(together)["PodDisruptionBudget"] == [NAME]
    assert one(together, "Deployment")["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    assert len(one(together, "Deployment")["spec"]["template"]["spec"]["topologySpreadConstraints"]) == 2


def test_autoscaler_owns_the_number_of_replicas(helm):
    objects = helm.template(*FLAVOURS["autoscaled"])
    assert "replicas" not in one(objects, "Deployment")["spec"]
    assert one(objects, "HorizontalPodAutoscaler")["spec"]["minReplicas"] == 2
    assert "--ha-enable-leader-election" not in container(objects)["args"]
    assert "PodDisruptionBudget" in kinds(objects)


def test_image_is_named_by_digest_where_there_is_one(helm):
    digest = "sha256:" + "0" * 64
    assert container(helm.template())["image"] == "inference-epp:0.1.0"
    own = ("router.epp.image.registry=registry.example:5000", "router.epp.image.repository=a/b")
    assert container(helm.template(*own, "router.epp.image.tag=v2"))["image"] == "registry.example:5000/a/b:v2"
    named = container(helm.template(*own, f"router.epp.image.digest={digest}"))["image"]
    assert named == f"registry.example:5000/a/b@{digest}"


def test_network_policy_names_who_may_call_which_port(helm):
    policy = one(helm.template(*FLAVOURS["enclosed"]), "NetworkPolicy")["spec"]
    gateways = [{"namespaceSelector": {"matchLabels": {"name": "gateways"}}}]
    monitoring = [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}]
    assert _peers(policy["ingress"], "from") == {9002: gateways, 9003: gateways, 9090: monitoring}
    assert _peers(policy["egress"], "to") == {
        53: None,
        8000: [{"podSelector": {"matchLabels": {"app": "vllm"}}}],
        443: [{"ipBlock": {"cidr": "10.0.0.1/32"}}],
        6443: [{"ipBlock": {"cidr": "10.0.0.1/32"}}],
    }


def test_network_policy_lets_the_proxy_reach_pickers_and_model_servers(helm):
    objects = helm.template(*FLAVOURS["proxy-service"])
    proxy = {"app.kubernetes.io/name": "inference-epp", "app.kubernetes.io/instance": RELEASE}
    picker_policy = one(objects, "NetworkPolicy", NAME)["spec"]
    (peer,) = _peers(picker_policy["ingress"], "from")[9002]
    assert peer["podSelector"]["matchLabels"] == {**proxy, "app.kubernetes.io/component": "proxy"}
    proxy_policy = one(objects, "NetworkPolicy", f"{NAME}-proxy")["spec"]
    assert set(_peers(proxy_policy["ingress"], "from")) == {8081, 19001}
    assert set(_peers(proxy_policy["egress"], "to")) == {53, 8000, 9002}


def _peers(rules: list[dict], direction: str) -> dict[int, list | None]:
    return {port["port"]: rule.get(direction) for rule in rules for port in rule["ports"]}
