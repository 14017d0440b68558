"""Configurations, endpoints and lists that flags name."""

from collections.abc import Sequence
from pathlib import Path

from epp.config import LoadedConfig, load_file, load_text
from epp.discovery import StaticDiscovery, parse_targets
from epp.framework import ConfigurationError
from epp.framework.datalayer import Discovery
from epp.framework.plugin import Parameters


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


def read_endpoints(lists: Sequence[str] | None) -> Discovery[Parameters] | None:
    """Return the pool of --endpoints, None without it; raises ConfigurationError."""
    if lists is None:
        return None
    try:
        return StaticDiscovery(parse_targets(",".join(lists)))
    except ValueError as error:
        raise ConfigurationError(f"--endpoints: {error}") from error
