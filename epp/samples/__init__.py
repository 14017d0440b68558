# SPDX-License-Identifier: Apache-2.0
"""Ready-made EndpointPickerConfig files, each with a word on when to use it; part of the installed package."""

from collections.abc import Mapping
from importlib.resources import files
from types import MappingProxyType

_SUFFIX = ".yaml"


def sample_texts() -> Mapping[str, str]:
    """Return the text of each file by its name without `.yaml`, in order of the names."""
    found = (path for path in files(__name__).iterdir() if path.name.endswith(_SUFFIX))
    ordered = sorted(found, key=lambda path: path.name)
    return MappingProxyType({path.name.removesuffix(_SUFFIX): path.read_text(encoding="utf-8") for path in ordered})


def summary(text: str) -> str:
    """Return the first sentence of a file, which is a comment."""
    return text.partition("\n")[0].removeprefix("# ")
