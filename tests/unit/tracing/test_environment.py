# SPDX-License-Identifier: Apache-2.0
"""Variables of OpenTelemetry decide whether requests are traced, and how."""

import subprocess
import sys

import pytest
from structlog.testing import capture_logs

from epp.cli.picker_flags import Serve
from epp.cli.serve import read_tracing
from epp.framework import ConfigurationError
from epp.telemetry.tracing import TracingError, read_environment

CHART = {
    "OTEL_SERVICE_NAME": "llm-d-router/epp",
    "OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:4317",
    "OTEL_TRACES_EXPORTER": "otlp",
    "OTEL_TRACES_SAMPLER": "parentbased_traceidratio",
    "OTEL_TRACES_SAMPLER_ARG": "0.1",
}


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"OTEL_TRACES_EXPORTER": ""},
        {"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:4317"},
        {**CHART, "OTEL_SDK_DISABLED": "True"},
        {"OTEL_SERVICE_NAME": "epp"},
    ],
)
def test_nothing_is_traced_where_no_exporter_is_set(variables):
    assert read_environment(variables) is None


@pytest.mark.parametrize(
    ("variables", "exporters"),
    [
        (CHART, ("otlp_proto_grpc",)),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4317"}, ("otlp_proto_grpc",)),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c:4317"}, ("otlp_proto_grpc",)),
        ({"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}, ("otlp_proto_http",)),
        ({"OTEL_TRACES_EXPORTER": "console, otlp,otlp"}, ("console", "otlp_proto_grpc")),
        ({"OTEL_TRACES_EXPORTER": "of-a-package"}, ("of-a-package",)),
    ],
)
def test_exporters_by_the_names_under_which_packages_register_them(variables, exporters):
    settings = read_environment(variables)
    assert settings is not None
    assert settings.exporters == exporters


def test_defaults_are_those_of_the_reference_where_the_environment_has_none():
    alone, charted = read_environment({"OTEL_TRACES_EXPORTER": "otlp"}), read_environment(CHART)
    assert alone is not None
    assert charted is not None
    assert (alone.service_name, alone.share) == ("llm-d-epp", 0.1)
    assert (charted.service_name, charted.share) == (None, None)
    assert (alone.delay_seconds, alone.most_queued, alone.batch) == (5, 2048, 512)


@pytest.mark.parametrize(
    ("variables", "problem"),
    [
        ({"OTEL_BSP_SCHEDULE_DELAY": "soon"}, "OTEL_BSP_SCHEDULE_DELAY is 'soon': write a whole number of 1 or more"),
        ({"OTEL_BSP_MAX_QUEUE_SIZE": "0"}, "OTEL_BSP_MAX_QUEUE_SIZE is '0': write a whole number of 1 or more"),
        (
            {"OTEL_EXPORTER_OTLP_PROTOCOL": "carrier-pigeon"},
            "OTEL_EXPORTER_OTLP_PROTOCOL is 'carrier-pigeon': write grpc or http/protobuf",
        ),
        (
            {"OTEL_TRACES_EXPORTER": "none,otlp"},
            "OTEL_TRACES_EXPORTER has `none` next to other exporters: leave one of them out",
        ),
    ],
)
def test_values_that_mean_nothing_are_refused(variables, problem):
    with pytest.raises(TracingError) as refused:
        read_environment({"OTEL_TRACES_EXPORTER": "otlp", **variables})
    assert str(refused.value) == problem


def test_exporter_that_was_asked_for_and_cannot_be_used_is_an_error():
    with pytest.raises(
        ConfigurationError, match=r"no package provides the exporter 'zipkin' .*; or give --tracing=false"
    ):
        read_tracing(Serve(), {"OTEL_TRACES_EXPORTER": "zipkin"})


def test_address_of_a_collector_for_other_programs_is_a_warning():
    variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"}
    with capture_logs() as logs:
        assert read_tracing(Serve(), variables) is None
    assert [(line["event"], line["log_level"]) for line in logs] == [("requests are not traced", "warning")]


def test_flag_switches_it_off():
    assert read_tracing(Serve(tracing=False), {"OTEL_TRACES_EXPORTER": "zipkin"}) is None


def test_picker_without_an_exporter_imports_nothing_of_opentelemetry():
    program = (
        "import sys; from epp.cli.picker_flags import Serve; from epp.cli import serve; from epp.cli.serve import "
        "read_tracing; read_tracing(Serve(), {}); print([name for name in sys.modules if 'opentelemetry' in name])"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert said.stdout == "[]\n"
