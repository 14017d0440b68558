# SPDX-License-Identifier: Apache-2.0
"""The ready-made EndpointPickerConfig files: `config/` in a checkout, `epp/ready_made/` where a wheel is installed."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

_PLACES = (Path(__file__).parents[1] / "ready_made", Path(__file__).parents[2] / "config")
DIRECTORY = next((place for place in _PLACES if place.is_dir()), _PLACES[-1])


def sample_texts() -> Mapping[str, str]:
    """Return the text of each file by its name without `.yaml`, in order of the names."""
    return MappingProxyType({path.stem: path.read_text(encoding="utf-8") for path in sorted(DIRECTORY.glob("*.yaml"))})


def summary(text: str) -> str:
    """Return the first sentence of a file, which is a comment."""
    return text.partition("\n")[0].removeprefix("# ")
