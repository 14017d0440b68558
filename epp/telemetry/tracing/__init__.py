# SPDX-License-Identifier: Apache-2.0
"""OpenTelemetry traces of requests. The SDK is imported where an exporter is set, and nowhere else."""

from epp.telemetry.tracing.environment import TracingError, TracingSettings, read_environment

__all__ = ["TracingError", "TracingSettings", "read_environment"]
