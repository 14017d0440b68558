# SPDX-License-Identifier: Apache-2.0
"""The Helm chart: what it makes of values, and which values it refuses."""

import json

import pytest
import typer.main
import yaml
from charts import CHART, FLAVOURS, NAMESPACE, RELEASE, SERVERS, container, kinds, one

from epp.cli import go_flags
from epp.cli.app import application
from epp.config import Builder, assemble, load_text
from epp.framework import ManualClock
from epp.framework.registry import Registry

NAME = f"{RELEASE}-epp"


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_lint_has_nothing_to_say(helm, flavour):
    values = [word for value in (SERVERS, *FLAVOURS[flavour]) for word in ("--set", value)]
    ended = helm.run("lint", "--strict", str(CHART), "--kube-version", helm.kube_version, *values)
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (("router.epp.relicas=2",), "additional properties 'relicas' not allowed"),
        (("routter.epp.replicas=2",), "additional properties 'routter' not allowed"),
        (("router.proxy.mode=daemon",), "value must be one of 'sidecar', 'service'"),
        (("router.inferencePool.failureMode=FailClosed",), "value must be one of 'FailOpen', 'FailClose'"),
        (("router.modelServers.targetPorts[0].number=80000",), "maximum: got 80,000, want 65,535"),
        (("router.modelServers.targetPorts[0].port=8000",), "additional properties 'port' not allowed"),
        (("router.modelServers.matchLabels.version=1",), "got number, want string"),
        (("router.epp.image.digest=latest",), "does not match pattern"),
        (("router.monitoring.prometheus.auth.enabled=true",), "value must be false"),
        (("router.latencyPredictor.enabled=true",), "additional properties 'latencyPredictor' not allowed"),
        (("router.modelServers.matchLabels=null",), "router.modelServers.matchLabels is empty"),
        (("router.epp.flags.grpc-port=9100",), "router.epp.flags has grpc-port, which this chart sets"),
        (
            ("router.epp.autoscaling.enabled=true", "router.epp.flags.ha-enable-leader-election=true"),
            "router.epp.autoscaling cannot help a picker with leader election",
        ),
        (("router.epp.autoscaling.enabled=true", "router.epp.autoscaling.minReplicas=9"), "less than minReplicas 9"),
        (
            ("router.inferencePool.create=false", *FLAVOURS["objectives"]),
            "router.inferenceObjectives needs the pool",
        ),
        (("router.inferencePool.create=false", "httpRoute.create=true"), "httpRoute.create needs the pool"),
        (("router.epp.pluginsConfigFile=mine.yaml",), "router.epp.pluginsConfigFile is mine.yaml, which no value has"),
        (("router.epp.flags.drain-timeout=125s",), "write 135 or more"),
        (("router.proxy.enabled=true", "router.proxy.drainSeconds=200"), "write 210 or more"),
    ],
)
def test_mistake_is_refused_with_its_place(helm, values, said):
    assert said in helm.refusal(*values)


def test_schema_has_each_value_of_the_file_and_no_other():
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert set(_schema_paths(schema, schema)) - {"global"} == set(_value_paths(values, schema, schema))


def _schema_paths(schema: dict, root: dict, path: str = "") -> list[str]:
    """Return the path of each property with no properties of its own."""
    if "$ref" in schema:
        return _schema_paths(root["$defs"][schema["$ref"].rpartition("/")[2]], root, path)
    if schema.get("additionalProperties") is not False:
        return [path.removeprefix(".")]
    return [
        each for name, inner in schema["properties"].items() for each in _schema_paths(inner, root, f"{path}.{name}")
    ]


def _value_paths(values: object, schema: dict, root: dict, path: str = "") -> list[str]:
    """Return the path of each value that the schema has no properties for."""
    if "$ref" in schema:
        return _value_paths(values, root["$defs"][schema["$ref"].rpartition("/")[2]], root, path)
    if schema.get("additionalProperties") is not False or not isinstance(values, dict):
        return [path.removeprefix(".")]
    return [
        each
        for name, value in values.items()
        for each in _value_paths(value, schema["properties"][name], root, f"{path}.{name}")
    ]


def test_default_is_a_pool_and_its_picker(helm):
    objects = helm.template()
    always = ("ConfigMap", "Deployment", "Role", "RoleBinding", "Service", "ServiceAccount")
    assert kinds(objects) == {kind: [NAME] for kind in always} | {"InferencePool": [RELEASE]}
    pool = one(objects, "InferencePool")["spec"]
    assert pool == {
        "selector": {"matchLabels": {"app": "vllm"}},
        "targetPorts": [{"number": 8000}],
        "endpointPickerRef": {
            "group": "",
            "kind": "Service",
            "name": NAME,
            "port": {"number": 9002},
            "failureMode": "FailOpen",
        },
    }
    ports = {port["name"]: port for port in one(objects, "Service")["spec"]["ports"]}
    assert ports["grpc-ext-proc"]["appProtocol"] == "kubernetes.io/h2c"
    assert (ports["grpc-ext-proc"]["port"], ports["http-metrics"]["port"]) == (9002, 9090)


def test_picker_is_started_as_llm_ds_chart_starts_it(helm):
    assert container(helm.template())["args"] == [
        *("--pool-name", RELEASE, "--pool-namespace", NAMESPACE, "--pool-group", "inference.networking.k8s.io"),
        *("--zap-encoder", "json", "--config-file", "/config/default-plugins.yaml"),
        *("--grpc-health-port", "9003", "--drain-timeout=120s", "--tracing=false"),
    ]
    assert container(helm.template(*FLAVOURS["without-pool"], "router.modelServers.matchLabels.role=chat"))["args"] == [
        *("--endpoint-selector", "app=vllm,role=chat", "--endpoint-target-ports", "8001"),
        *("--zap-encoder", "json", "--config-file", "/config/default-plugins.yaml"),
        *("--grpc-health-port", "9003", "--drain-timeout=120s", "--tracing=false"),
    ]


def test_flags_reach_the_picker_as_they_are_given(helm):
    arguments = container(
        helm.template(
            "router.epp.flags.v=4",
            "router.epp.flags.secure-serving=false",
            "router.epp.flags.drain-timeout=1m",
            "router.epp.flags.tracing=true",
        )
    )["args"]
    assert arguments[-4:] == ["--drain-timeout=1m", "--secure-serving=false", "--tracing=true", "--v=4"]


def test_environment_tells_the_picker_where_it_is(helm):
    objects = helm.template(*FLAVOURS["traced"], "router.epp.env[0].name=A", "router.epp.env[0].value=b")
    environment = {each["name"]: each for each in container(objects)["env"]}
    assert environment["NAMESPACE"]["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.namespace"
    assert environment["POD_NAME"]["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.name"
    assert environment["OTEL_SERVICE_NAME"]["value"] == "llm-d-router/epp"
    assert environment["OTEL_TRACES_SAMPLER_ARG"]["value"] == "0.1"
    assert environment["OTEL_EXPORTER_OTLP_ENDPOINT"]["value"] == "http://localhost:4317"
    assert environment["A"]["value"] == "b"


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_arguments_are_those_of_the_command_line(helm, flavour):
    arguments = container(helm.template(*FLAVOURS[flavour]))["args"]
    if missing := [flag for flag in go_flags.UNSUPPORTED if flag in arguments]:
        pytest.skip(f"epp serve does not take {missing[0]} yet")
    serve = typer.main.get_command(application()).commands["serve"]
    parsed = serve.make_context("serve", [each.replace("/config/", f"{CHART}/files/") for each in arguments])
    assert parsed.params["grpc_health_port"] in {9003, 9005}


@pytest.mark.parametrize("engine", ["vllm", "sglang", "triton-tensorrt-llm", "trtllm-serve", "triton"])
def test_configurations_are_valid_for_every_engine(helm, engine):
    objects = helm.template(
        f"router.modelServers.type={engine}",
        "router.epp.parsers={openai-parser,anthropic-parser}",
        "router.epp.accelerators.clusterObjects=true",
    )
    files = one(objects, "ConfigMap")["data"]
    assert set(files) == {"default-plugins.yaml", "payload-agnostic.yaml"}
    for text in files.values():
        assembly = assemble(load_text(text), Builder(Registry(), ManualClock()))
        assert assembly.warnings == ()


def test_configuration_of_the_users_own_is_mounted_as_a_directory(helm, tmp_path):
    file = tmp_path / "values.yaml"
    file.write_text(
        "router: {epp: {pluginsConfigFile: mine.yaml, pluginsCustomConfig: {other.yaml: 'kind: Other'},"
        " pluginsConfig: {kind: EndpointPickerConfig, plugins: [{type: queue-scorer}]}}}"
    )
    objects = helm.template(files=[file])
    files = one(objects, "ConfigMap")["data"]
    assert yaml.safe_load(files["mine.yaml"]) == {"kind": "EndpointPickerConfig", "plugins": [{"type": "queue-scorer"}]}
    assert files["other.yaml"] == "kind: Other\n"
    picker = container(objects)
    assert picker["args"][picker["args"].index("--config-file") + 1] == "/config/mine.yaml"
    (mount,) = [mount for mount in picker["volumeMounts"] if mount["mountPath"] == "/config"]
    assert "subPath" not in mount  # such a file is never updated
    assert not any("checksum/config" in name for name in one(objects, "Deployment")["spec"]["template"]["metadata"])


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


def test_model_servers_over_http2_are_a_matter_of_the_pool(helm):
    objects = helm.template("router.modelServers.protocol=grpc")
    assert one(objects, "InferencePool")["spec"]["appProtocol"] == "kubernetes.io/h2c"


def test_image_is_named_by_digest_where_there_is_one(helm):
    digest = "sha256:" + "0" * 64
    assert container(helm.template())["image"] == "inference-epp:0.1.0"
    own = ("router.epp.image.registry=registry.example:5000", "router.epp.image.repository=a/b")
    assert container(helm.template(*own, "router.epp.image.tag=v2"))["image"] == "registry.example:5000/a/b:v2"
    named = container(helm.template(*own, f"router.epp.image.digest={digest}"))["image"]
    assert named == f"registry.example:5000/a/b@{digest}"


def test_istio_calls_the_picker_over_tls_where_that_is_served(helm):
    rule = one(helm.template(*FLAVOURS["istio"]), "DestinationRule")["spec"]
    assert rule == {
        "host": f"{NAME}.{NAMESPACE}.svc.cluster.local",
        "trafficPolicy": {"tls": {"mode": "SIMPLE", "insecureSkipVerify": True}},
    }
    assert "DestinationRule" not in kinds(helm.template(*FLAVOURS["istio"], "router.epp.flags.secure-serving=false"))


def test_route_leads_to_the_pool(helm):
    route = one(helm.template(*FLAVOURS["istio"]), "HTTPRoute")["spec"]
    assert route["parentRefs"] == [
        {"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "inference-gateway"}
    ]
    (rule,) = route["rules"]
    assert rule["backendRefs"] == [{"group": "inference.networking.k8s.io", "kind": "InferencePool", "name": RELEASE}]
    assert rule["matches"][0]["headers"] == [{"type": "Exact", "name": "x-model", "value": "llama"}]
    assert rule["timeouts"] == {"request": "300s"}


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
