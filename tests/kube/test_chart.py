# SPDX-License-Identifier: Apache-2.0
"""The Helm chart: what it makes of values, and which values it refuses."""

import json

import pytest
import typer.main
import yaml

from epp.cli.app import application
from epp.config import Builder, assemble, load_text
from epp.framework import ManualClock
from epp.framework.registry import Registry
from epp.pool.collectors.engine import BUILT_IN
from tests.support.commands import outcome
from tests.support.kube.charts import CHART, FLAVOURS, NAMESPACE, RELEASE, SERVERS, UNGUARDED, container, kinds, one

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
        (("router.latencyPredictor.trainingServer.port=8000",), "additional properties 'trainingServer' not allowed"),
        (("router.tokenizer.enabled=true",), "router.tokenizer.modelName is empty: write the name of the model"),
        (
            ("router.tokenizer.enabled=true", "router.tokenizer.modelName=m", "router.tokenizer.port=9090"),
            "router.tokenizer.port 9090 is a port of the picker's pod already",
        ),
        (("router.modelServers.matchLabels=null",), "router.modelServers.matchLabels is empty"),
        (("router.epp.flags.grpc-port=9100",), "router.epp.flags has grpc-port, which this chart sets"),
        (
            ("router.epp.autoscaling.enabled=true", "router.epp.flags.ha-enable-leader-election=true"),
            "router.epp.autoscaling cannot help a picker with leader election",
        ),
        (("router.epp.autoscaling.enabled=true", "router.epp.autoscaling.minReplicas=9"), "less than minReplicas 9"),
        (("router.inferencePool.create=false", *FLAVOURS["objectives"]), "router.inferenceObjectives needs the pool"),
        (("router.inferencePool.create=false", "httpRoute.create=true"), "httpRoute.create needs the pool"),
        (("router.epp.pluginsConfigFile=mine.yaml",), "router.epp.pluginsConfigFile is mine.yaml, which no value has"),
        (("router.epp.flags.grpc-prot=9100",), "additional properties 'grpc-prot' not allowed"),
        (("router.epp.flags.pool-selector=a=b",), "router.epp.flags has pool-selector, which this chart sets"),
        (("router.epp.flags.drain-timeout=125s",), "write 135 or more"),
        (("router.sharedState.url=redis://me:secret@host:6379",), "put it into a Secret"),
        (("router.sharedState.url=redis+sentinel://me:secret@host/state",), "put it into a Secret"),
        (("router.sharedState.url=redis+cluster://host",), "does not match pattern"),
        (("router.sharedState.quotasWhenAlone=refuse",), "set router.sharedState.url, or leave it out"),
        (("router.epp.flags.shared-quotas-when-alone=refuse",), "which this chart sets"),
        (("router.epp.flags.shared-state=redis://host:6379",), "router.epp.flags has shared-state"),
        (("router.proxy.enabled=true", "router.proxy.drainSeconds=200"), "write 210 or more"),
        (("router.proxy.bodyMode=streamed",), "value must be one of '', 'full-duplex', 'buffered'"),
        (
            ("router.proxy.enabled=true", "router.proxy.failOpen=true", "router.proxy.bodyMode=full-duplex"),
            "leave router.proxy.bodyMode out, or set it to buffered",
        ),
        (
            ("router.proxy.enabled=true", "router.epp.flags.max-request-body=1.5Gi"),
            "router.epp.flags.max-request-body 1.5Gi is not a size",
        ),
    ],
)
def test_mistake_is_refused_with_its_place(helm, values, said):
    assert said in helm.refusal(*values)


def test_schema_has_each_value_of_the_file_and_no_other():
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    paths = {each for each in _schema_paths(schema, schema) if not each.startswith("router.epp.flags.")}
    assert paths - {"global"} == set(_value_paths(values, schema, schema))


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
    objects = helm.template(UNGUARDED)
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
        *("--grpc-health-port", "9003", "--drain-timeout=120s"),
        *("--metrics-endpoint-auth=true", "--tracing=false"),
    ]
    assert container(helm.template(*FLAVOURS["without-pool"], "router.modelServers.matchLabels.role=chat"))["args"] == [
        *("--endpoint-selector", "app=vllm,role=chat", "--endpoint-target-ports", "8001"),
        *("--zap-encoder", "json", "--config-file", "/config/default-plugins.yaml"),
        *("--grpc-health-port", "9003", "--drain-timeout=120s"),
        *("--metrics-endpoint-auth=true", "--tracing=false"),
    ]


def test_flags_reach_the_picker_as_they_are_given(helm):
    arguments = container(
        helm.template(
            "router.epp.flags.v=4",
            "router.epp.flags.secure-serving=false",
            "router.epp.flags.drain-timeout=1m",
            "router.epp.flags.metrics-endpoint-auth=true",
            "router.epp.flags.tracing=true",
        )
    )["args"]
    given = ["--drain-timeout=1m", "--metrics-endpoint-auth=true", "--secure-serving=false", "--tracing=true", "--v=4"]
    assert arguments[-5:] == given


def test_large_number_of_a_values_file_stays_a_number(helm, tmp_path):
    """Helm reads it as a float, and would write 3.3554432e+07."""
    file = tmp_path / "values.yaml"
    file.write_text(
        "router:\n"
        "  epp: {flags: {max-request-body: 33554432, v: 4, refresh-metrics-interval: 0.5s}}\n"
        "  inferenceObjectives: [{name: first, priority: 1000000}]\n"
        "  proxy: {enabled: true, maxConnections: 2000000}\n"
    )
    objects = helm.template(files=[file])
    assert {"--max-request-body=33554432", "--v=4", "--refresh-metrics-interval=0.5s"} <= set(
        container(objects)["args"]
    )
    assert one(objects, "InferenceObjective")["spec"]["priority"] == 1_000_000
    assert (
        "max_active_downstream_connections: 2000000" in one(objects, "ConfigMap", f"{NAME}-proxy")["data"]["envoy.yaml"]
    )


def test_environment_tells_the_picker_where_it_is(helm):
    objects = helm.template(*FLAVOURS["traced"], "router.epp.env[0].name=A", "router.epp.env[0].value=b")
    environment = {each["name"]: each for each in container(objects)["env"]}
    assert environment["NAMESPACE"]["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.namespace"
    assert environment["POD_NAME"]["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.name"
    assert environment["OTEL_SERVICE_NAME"]["value"] == "llm-d-router/epp"
    assert environment["OTEL_TRACES_SAMPLER_ARG"]["value"] == "0.1"
    assert environment["OTEL_EXPORTER_OTLP_ENDPOINT"]["value"] == "http://localhost:4317"
    assert environment["A"]["value"] == "b"


def test_replicas_that_share_their_state_serve_at_the_same_time(helm):
    values = ("router.epp.replicas=3", "router.sharedState.url=valkeys://state:6379/0")
    objects = helm.template(*values, "router.sharedState.passwordSecret.name=state")
    picker = container(objects)
    assert "--shared-state=valkeys://state:6379/0" in picker["args"]
    assert "--ha-enable-leader-election" not in picker["args"]
    environment = {each["name"]: each for each in picker["env"]}
    assert environment["EPP_REDIS_PASSWORD"]["valueFrom"] == {"secretKeyRef": {"name": "state", "key": "password"}}
    assert one(objects, "PodDisruptionBudget")["spec"]["maxUnavailable"] == 1
    assert "EPP_REDIS_PASSWORD" not in {each["name"] for each in container(helm.template(*values))["env"]}
    refusing = container(helm.template(*values, "router.sharedState.quotasWhenAlone=refuse"))["args"]
    assert "--shared-quotas-when-alone=refuse" in refusing
    assert not [each for each in container(helm.template())["args"] if "shared" in each]


@pytest.mark.parametrize(
    ("url", "ports"),
    [
        ("redis://me@state", [6379]),
        ("rediss://me@[::1]:7000/1", [7000]),
        (r"redis+sentinel://one:7000\,two/state", [6379, 26379, 7000]),
    ],
)
def test_enclosed_pickers_reach_the_server_of_their_shared_state(helm, url, ports):
    objects = helm.template(*FLAVOURS["enclosed"], f"router.sharedState.url={url}")
    rules = [each for each in one(objects, "NetworkPolicy")["spec"]["egress"] if "to" not in each]
    assert {"ports": [{"port": port, "protocol": "TCP"} for port in ports]} in rules


def test_a_replica_may_have_several_workers(helm):
    assert "--workers=4" in container(helm.template("router.epp.workers=4"))["args"]
    assert not [each for each in container(helm.template())["args"] if "workers" in each]


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_arguments_are_those_of_the_command_line(helm, flavour):
    arguments = container(helm.template(*FLAVOURS[flavour]))["args"]
    serve = typer.main.get_command(application()).commands["serve"]
    parsed = serve.make_context("serve", [each.replace("/config/", f"{CHART}/files/") for each in arguments])
    assert parsed.params["grpc_health_port"] in {9003, 9005}


@pytest.mark.parametrize("engine", BUILT_IN)
def test_configurations_are_valid_for_every_engine(helm, engine):
    objects = helm.template(
        f"router.modelServers.type={engine}",
        "router.epp.parsers={openai-parser,anthropic-parser}",
        "router.epp.accelerators.clusterObjects=true",
    )
    files = one(objects, "ConfigMap")["data"]
    assert set(files) == {"default-plugins.yaml", "llm-d-default.yaml", "payload-agnostic.yaml"}
    for text in files.values():
        assembly = assemble(load_text(text), Builder(Registry(), ManualClock()))
        assert assembly.warnings == ()
    default, ready_made = (
        load_text(text).model.scheduling_profiles
        for text in (files["default-plugins.yaml"], (CHART.parents[1] / "config" / "adaptive.yaml").read_text())
    )
    assert default == ready_made  # one default, in a cluster as elsewhere


def test_predicted_latency_has_the_profile_of_llm_d_and_no_side_car(helm):
    objects = helm.template("router.latencyPredictor.enabled=true", "router.modelServers.type=sglang")
    text = one(objects, "ConfigMap")["data"]["default-plugins.yaml"]
    assembly = assemble(load_text(text), Builder(Registry(), ManualClock()))
    assert assembly.warnings == ()
    (profile,) = load_text(text).model.scheduling_profiles
    assert [each.plugin_ref for each in profile.plugins] == [
        "strict-affinity-filter",
        "slo-headroom-tier-filter",
        "loose-affinity-filter",
        "latency-scorer",
        "weighted-random-picker",
    ]
    assert len(one(objects, "Deployment")["spec"]["template"]["spec"]["containers"]) == 1


def test_tokenizer_runs_beside_the_picker(helm, tmp_path):
    file = tmp_path / "values.yaml"
    file.write_text(
        "router: {tokenizer: {enabled: true, modelName: my/model, extraArgs: [--trust-remote-code], port: 8100,"
        " env: [{name: HF_TOKEN, value: x}], volumes: [{name: v, emptyDir: {}}], initContainers: [{name: i, image: j}],"
        " volumeMounts: [{name: v, mountPath: /v}]}}"
    )
    pod = one(helm.template(files=[file]), "Deployment")["spec"]["template"]["spec"]
    _, render = pod["containers"]
    assert render["command"] == ["vllm", "launch", "render"]
    assert render["args"] == ["my/model", "--port=8100", "--trust-remote-code"]
    assert render["image"] == "docker.io/vllm/vllm-openai-cpu:v0.32.0"
    assert {"name": "HF_TOKEN", "value": "x"} in render["env"]
    assert [each["name"] for each in render["volumeMounts"]] == ["model-cache", "model-cache", "v"]
    assert {"model-cache", "v"} <= {each["name"] for each in pod["volumes"]}
    assert pod["initContainers"] == [{"name": "i", "image": "j"}]
    rust = helm.template("router.tokenizer.flavor=rust", files=[file])
    assert one(rust, "Deployment")["spec"]["template"]["spec"]["containers"][1]["command"] == ["vllm-rs", "render"]


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


def test_model_servers_over_http2_are_a_matter_of_the_pool(helm):
    objects = helm.template("router.modelServers.protocol=grpc")
    assert one(objects, "InferencePool")["spec"]["appProtocol"] == "kubernetes.io/h2c"


async def test_configurations_for_model_servers_with_a_grpc_api_are_valid(helm, tmp_path):
    objects = helm.template("router.modelServers.protocol=grpc", "router.epp.parsers={vllmgrpc-parser}")
    for name, text in one(objects, "ConfigMap")["data"].items():
        (tmp_path / name).write_text(text)
        exit_code, said = await outcome("check", str(tmp_path / name))
        assert exit_code == 0, said


def test_istio_calls_the_picker_over_tls_where_that_is_served(helm):
    rule = one(helm.template(*FLAVOURS["istio"]), "DestinationRule")["spec"]
    assert rule == {
        "host": f"{NAME}.{NAMESPACE}.svc.cluster.local",
        "trafficPolicy": {
            "tls": {"mode": "SIMPLE", "insecureSkipVerify": True},
            "outlierDetection": {
                "splitExternalLocalOriginErrors": True,
                "consecutiveLocalOriginFailures": 1,
                "interval": "1s",
                "baseEjectionTime": "1s",
                "maxEjectionPercent": 100,
            },
        },
    }
    assert "DestinationRule" not in kinds(helm.template(*FLAVOURS["istio"], "router.epp.flags.secure-serving=false"))


def test_istio_can_be_told_to_verify_the_picker(helm):
    tls = "provider.istio.destinationRule.trafficPolicy.tls"
    values = (f"{tls}.insecureSkipVerify=false", f"{tls}.credentialName=ca")
    rule = one(helm.template(*FLAVOURS["istio"], *values), "DestinationRule")["spec"]
    assert rule["trafficPolicy"]["tls"] == {"mode": "SIMPLE", "insecureSkipVerify": False, "credentialName": "ca"}


def test_route_leads_to_the_pool(helm):
    route = one(helm.template(*FLAVOURS["istio"]), "HTTPRoute")["spec"]
    assert route["parentRefs"] == [
        {"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "inference-gateway"}
    ]
    (rule,) = route["rules"]
    assert rule["backendRefs"] == [{"group": "inference.networking.k8s.io", "kind": "InferencePool", "name": RELEASE}]
    assert rule["matches"][0]["headers"] == [{"type": "Exact", "name": "x-model", "value": "llama"}]
    assert rule["timeouts"] == {"request": "300s"}
