# SPDX-License-Identifier: Apache-2.0
"""OpenTelemetry traces of requests, and the environment variables that configure them.

The SDK is only imported if an exporter is set. It reads the other variables: addresses, headers, certificates,
samplers, resources and attribute limits.
"""

from collections.abc import Mapping
from dataclasses import dataclass

DEFAULT_SERVICE_NAME = "llm-d-epp"
DEFAULT_SHARE = 0.1
"""Share of new traces that is recorded if no sampler is set."""
_EXPORTER = "OTEL_TRACES_EXPORTER"
_ADDRESSES = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_OTLP = {"grpc": "otlp_proto_grpc", "http/protobuf": "otlp_proto_http"}
"""Registered names of exporters, by protocol."""
_DELAY_MS, _MOST_QUEUED, _BATCH = 5000, 2048, 512


class TracingError(Exception):
    """Requests cannot be traced; the message has the reason and the remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TracingSettings:
    exporters: tuple[str, ...]
    """Registered names."""
    service_name: str | None
    """None if the environment names the service."""
    share: float | None
    """Share of new traces that is recorded; None if the environment has a sampler."""
    delay_seconds: float = _DELAY_MS / 1e3
    """Longest time before queued spans are sent."""
    most_queued: int = _MOST_QUEUED
    """Most spans in the queue; further ones are dropped and counted."""
    batch: int = _BATCH
    """Most spans in one batch."""


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
        raise TracingError(f"{_EXPORTER} has `none` next to other exporters: leave one of them out")
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
