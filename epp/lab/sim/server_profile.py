# SPDX-License-Identifier: Apache-2.0
"""Server profiles in YAML files: the fields of SimProfile."""

from pathlib import Path

import msgspec

from epp.framework import ConfigurationError
from epp.lab.sim.profile import SimProfile

_MOST_BYTES = 64 * 1024


def load_server_profile(path: Path) -> SimProfile:
    """Return the profile in a YAML file; raises ConfigurationError."""
    try:
        with path.open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
        if len(content) > _MOST_BYTES:
            raise ValueError(f"more than {_MOST_BYTES >> 10} KiB")  # noqa: TRY301  one message for all
        return msgspec.yaml.decode(content, type=SimProfile)
    except OSError as error:
        raise ConfigurationError(f"server profile {path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ConfigurationError(f"server profile {path}: {error}") from error
