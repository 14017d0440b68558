# SPDX-License-Identifier: Apache-2.0
"""OpenTelemetry traces of requests, and the variables that decide whether there are any, and how much is kept.

The SDK is imported where an exporter is set, and nowhere else. It reads the other variables by itself: addresses,
headers, certificates, samplers, resources, limits of attributes.
"""

from collections.abc import Mapping
from dataclasses import dataclass

DEFAULT_SERVICE_NAME = "llm-d-epp"
DEFAULT_SHARE = 0.1
"""Share of the traces that begin here which is recorded, where no sampler is set."""
_EXPORTER = "OTEL_TRACES_EXPORTER"
_ADDRESSES = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_OTLP = {"grpc": "otlp_proto_grpc", "http/protobuf": "otlp_proto_http"}
"""Names of exporters, as packages register them, by protocol."""
_DELAY_MS, _MOST_QUEUED, _BATCH = 5000, 2048, 512


class TracingError(Exception):
    """Requests cannot be traced; the text says why, and the remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TracingSettings:
    exporters: tuple[str, ...]
    """Names under which packages register them."""
    service_name: str | None
    """None if the environment names the service."""
    share: float | None
    """Share of new traces that is recorded; None if the environment has a sampler."""
    delay_seconds: float = _DELAY_MS / 1e3
    """Time after which spans are sent, however few."""
    most_queued: int = _MOST_QUEUED
    """Spans that wait to be sent; further ones are dropped, and counted."""
    batch: int = _BATCH
    """Most spans that are sent together."""


def read_environment(variables: Mapping[str, str]) -> TracingSettings | None:
    """Return the settings; None if no exporter is set, or tracing is off. Raises TracingError."""
    if variables.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return None
    named = [name for text in variables.get(_EXPORTER, "").split(",") if (name := text.strip())]
    if not named and any(variables.get(name) for name in _ADDRESSES):
        named = ["otlp"]
    if not named or named == ["none"]:
        return None
    attributes = variables.get("OTEL_RESOURCE_ATTRIBUTES", "")
    is_named = bool(variables.get("OTEL_SERVICE_NAME")) or "service.name=" in attributes
    return TracingSettings(
        exporters=tuple(dict.fromkeys(_registered(name, variables) for name in named)),
        service_name=None if is_named else DEFAULT_SERVICE_NAME,
        share=None if variables.get("OTEL_TRACES_SAMPLER") else DEFAULT_SHARE,
        delay_seconds=_number(variables, "OTEL_BSP_SCHEDULE_DELAY", _DELAY_MS) / 1e3,
        most_queued=_number(variables, "OTEL_BSP_MAX_QUEUE_SIZE", _MOST_QUEUED),
        batch=_number(variables, "OTEL_BSP_MAX_EXPORT_BATCH_SIZE", _BATCH),
    )


def _registered(name: str, variables: Mapping[str, str]) -> str:
    if name == "none":
        raise TracingError(f"{_EXPORTER} has none beside others: write either")
    if name != "otlp":
        return name
    variable = next((each for each in _PROTOCOLS if variables.get(each)), _PROTOCOLS[0])
    protocol = variables.get(variable, "").strip() or "grpc"
    if protocol not in _OTLP:
        raise TracingError(f"{variable} is {protocol!r:.60}: write {' or '.join(_OTLP)}")
    return _OTLP[protocol]


def _number(variables: Mapping[str, str], name: str, default: int) -> int:
    text = variables.get(name, "").strip()
    if not text:
        return default
    if not (text.isascii() and text.isdecimal()) or not int(text):
        raise TracingError(f"{name} is {text!r:.60}: write a whole number of 1 or more")
    return int(text)
