"""From flags to the settings of a picker; what `serve` and `gateway` share."""

from pathlib import Path

from epp.config import LoadedConfig, load_file, load_text
from epp.discovery import StaticDiscovery, parse_targets
from epp.framework import ConfigurationError
from epp.framework.datalayer import Discovery
from epp.framework.plugin import Parameters


def read_config(file: Path | None, text: str | None) -> LoadedConfig | None:
    """Return what the flags name; None for neither; raises ConfigurationError for both."""
    if file is not None and text is not None:
        raise ConfigurationError("--config-file and --config-text exclude each other: give one")
    if file is not None:
        return load_file(file)
    return None if text is None else load_text(text)


def read_modules(text: str) -> tuple[str, ...]:
    """Return the modules that --allow-plugin-modules lists."""
    return tuple(part for each in text.split(",") if (part := each.strip()))


def read_endpoints(text: str | None) -> Discovery[Parameters] | None:
    """Return the pool that --endpoints names; None without it; raises ConfigurationError."""
    if text is None:
        return None
    try:
        return StaticDiscovery(parse_targets(text))
    except ValueError as error:
        raise ConfigurationError(f"--endpoints: {error}") from error
