# SPDX-License-Identifier: Apache-2.0
"""Server profiles as YAML files: the fields of `SimProfile`, and `source`, which says where the figures come from."""

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Literal

import msgspec

from epp.framework import ConfigurationError
from epp.framework.files import read_mapping
from epp.framework.input_errors import ParameterError, read_struct
from epp.framework.messages import hint_at
from epp.lab.sim.profile import PRESETS, SimProfile

_MOST_BYTES = 64 * 1024


class FitError(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Relative errors of the model on requests that it was not fitted to: 0.1 is 10 %."""

    requests: int
    ttft_median: float
    ttft_p90: float
    time_per_token_median: float
    time_per_token_p90: float


class ProfileSource(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Origin of the figures of a server profile."""

    kind: Literal["measured", "published", "derived"]
    server: str = ""
    """URL of the measured server."""
    at: datetime | None = None
    requests: int = 0
    """Requests that were measured."""
    errors: FitError | None = None
    notes: tuple[str, ...] = ()
    """Fields that were not measured, and whatever makes the figures less certain."""


def find_preset(name: str) -> SimProfile | None:
    """Return the preset of an accelerator, one derived from its data sheet if there is no other; None if unknown."""
    return PRESETS.get(name) or _derived_presets().get(name)


def find_server_profile(name: str, setting: str) -> SimProfile:
    """Return the preset of this name, or the profile in this file; raises ConfigurationError that names the setting."""
    if (preset := find_preset(name)) is not None:
        return preset
    path = Path(name)
    if not path.exists():
        known = [*PRESETS, *_derived_presets()]
        listed = f"the presets are {', '.join(PRESETS)}, and other accelerators such as l40s, b200 and mi300x"
        raise ConfigurationError(
            f"{setting}: there is no preset and no file {name!r}",
            remedy=hint_at(name, known, listed),
        )
    return load_server_profile(path)


def _derived_presets() -> Mapping[str, SimProfile]:
    from epp.lab.sim.derived import derived_presets  # noqa: PLC0415  reads the catalogue, which few servers need

    return derived_presets()


def load_server_profile(path: Path) -> SimProfile:
    """Return the profile in a YAML file; raises ConfigurationError that names file, field and remedy."""
    where = f"server profile {str(path)!r}"
    try:
        fields = read_mapping(path, _MOST_BYTES, "epp calibrate")
    except ValueError as error:
        raise ConfigurationError(f"{where} {error}") from error
    source = fields.pop("source", None)
    try:
        if source is not None:
            read_struct(_Sourced, {"source": source})
        return read_struct(SimProfile, fields)
    except ParameterError as error:
        raise ConfigurationError(f"{where}: {error.at('') if error.path else error}") from error


def dump_server_profile(profile: SimProfile, source: ProfileSource) -> str:
    """Return the YAML that `load_server_profile` reads; fields at their defaults are written too."""
    content = {"source": msgspec.to_builtins(source), **msgspec.to_builtins(profile)}
    return msgspec.yaml.encode(content).decode()


class _Sourced(msgspec.Struct, frozen=True):
    source: ProfileSource
