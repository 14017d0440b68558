# SPDX-License-Identifier: Apache-2.0
"""Whether requests are traced, by --tracing and the variables of OpenTelemetry."""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

import structlog

from epp.cli.picker_flags import PickerFlags
from epp.framework import ConfigurationError
from epp.framework.messages import install_command
from epp.telemetry.tracing import TracingError, TracingSettings, read_environment

if TYPE_CHECKING:  # imported where an exporter is set
    from epp.telemetry.tracing.tracing import Tracing

_log = structlog.get_logger()


def read_tracing(flags: PickerFlags, variables: Mapping[str, str] = os.environ) -> "Tracing | None":
    """Return what traces requests; None where no exporter is set, or tracing is off.

    Raises ConfigurationError where an exporter of traces is set that cannot be used. Where the address of a collector
    is all that is set, perhaps for other programs, a warning says so.
    """
    if not flags.tracing:
        return None
    is_asked_for = bool(variables.get("OTEL_TRACES_EXPORTER"))
    try:
        settings = read_environment(variables)
        return None if settings is None else _tracing(settings)
    except TracingError as error:
        if is_asked_for:
            raise ConfigurationError(f"requests cannot be traced: {error}; or give --tracing=false") from error
        _log.warning("requests are not traced", reason=str(error), remedy="mend it, or give --tracing=false")
        return None


def _tracing(settings: TracingSettings) -> "Tracing":
    try:
        from epp.telemetry.tracing.tracing import Tracing  # noqa: PLC0415  a package that only tracing needs
    except ImportError as error:
        raise TracingError(f"{error.name} is not installed: {install_command('tracing')}") from error
    return Tracing(settings)
