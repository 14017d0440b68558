"""What flags stand for: configurations, endpoints, and the settings of a picker."""

from pathlib import Path

from epp.cli.commands import PickerFlags
from epp.config import LoadedConfig, load_file, load_text
from epp.discovery import StaticDiscovery, parse_targets
from epp.extproc.server import ServerSettings
from epp.framework import ConfigurationError
from epp.framework.datalayer import Discovery
from epp.framework.plugin import Parameters
from epp.observability.log_writer import LogWriter
from epp.picker import PickerSettings


def split_list(text: str) -> tuple[str, ...]:
    """Return the parts of a comma-separated list."""
    return tuple(part for each in text.split(",") if (part := each.strip()))


def read_config(file: Path | None, text: str | None) -> LoadedConfig | None:
    """Return the configuration in the file or the text, None for neither; raises ConfigurationError."""
    if file is not None and text is not None:
        raise ConfigurationError("--config-file and --config-text exclude each other: give one")
    if file is not None:
        return load_file(file)
    return None if text is None else load_text(text)


def read_endpoints(text: str | None) -> Discovery[Parameters] | None:
    """Return the pool of --endpoints, None without it; raises ConfigurationError."""
    if text is None:
        return None
    try:
        return StaticDiscovery(parse_targets(text))
    except ValueError as error:
        raise ConfigurationError(f"--endpoints: {error}") from error


def picker_settings(flags: PickerFlags, server: ServerSettings, *, page_host: str, log: LogWriter) -> PickerSettings:
    """Return the settings for the flags that commands share; raises ConfigurationError."""
    return PickerSettings(
        server=server,
        config=read_config(flags.config_file, flags.config_text),
        watch_config=flags.config_file if flags.watch_config_file else None,
        experimental=bool(flags.allow_experimental_plugins),
        plugin_modules=split_list(flags.allow_plugin_modules),
        discovery=read_endpoints(flags.endpoints),
        pool_name=flags.pool_name,
        metrics_address=None if flags.metrics_port is None else (page_host, flags.metrics_port),
        refresh_metrics_seconds=flags.refresh_metrics_interval,
        refresh_prometheus_seconds=flags.refresh_prometheus_metrics_interval,
        plain_errors=bool(flags.plain_errors),
        max_body_bytes=flags.max_request_body,
        lost_log_lines=lambda: log.lost,
    )
