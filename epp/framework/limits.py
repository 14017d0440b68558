# SPDX-License-Identifier: Apache-2.0
"""Types with limits for plugin parameters; messages, reference and schema derive from them."""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias, get_args, get_origin

from msgspec import Meta

__all__ = ["Count", "Name", "Natural", "NonNegative", "Port", "Positive", "PositiveShare", "Share"]

_LARGEST = sys.float_info.max


@dataclass(frozen=True, slots=True)
class Corrected:
    """Marks limits whose violation replaces the value with a warning, as in llm-d-router, instead of an error."""

    by: Callable[[Any], object] | None = None
    """Returns the value that counts instead; None for the default of the parameter."""
    only: tuple[object, ...] = ()
    """The values to replace, all others being errors; empty for all that are out of the limits."""
    words: str = ""
    """The limit in words, such as `an absolute path`; by default told from the limits."""

    def applies_to(self, value: object) -> bool:
        """Return whether such a value may be replaced."""
        return not self.only or value in self.only

    @property
    def text(self) -> str:
        """What happens to other values, for the reference."""
        what = "the default" if self.by is None else "corrected"
        return f"{what} for {', '.join(map(str, self.only))}" if self.only else f"{what} otherwise"


Count: TypeAlias = Annotated[int, Meta(ge=1)]
"""A whole number of at least 1."""
Natural: TypeAlias = Annotated[int, Meta(ge=0)]
"""A whole number of at least 0."""
Port: TypeAlias = Annotated[int, Meta(ge=1, le=65535)]
"""A TCP port."""
Share: TypeAlias = Annotated[float, Meta(ge=0, le=1)]
"""A number between 0 and 1, both included."""
PositiveShare: TypeAlias = Annotated[float, Meta(gt=0, le=1)]
"""A number above 0 and up to 1."""
NonNegative: TypeAlias = Annotated[float, Meta(ge=0, le=_LARGEST)]
"""A finite number of at least 0."""
Positive: TypeAlias = Annotated[float, Meta(gt=0, le=_LARGEST)]
"""A finite number above 0."""
Threshold: TypeAlias = Annotated[float, Meta(gt=0)]
"""A number above 0, or infinity for one that is never reached."""
Weight: TypeAlias = Annotated[float, Meta(ge=0, le=1e6)]
"""A weight relative to others."""
Name: TypeAlias = Annotated[str, Meta(min_length=1)]
"""A text that is not empty."""
CountOrDefault: TypeAlias = Annotated[int, Meta(ge=1), Corrected()]
"""A whole number of at least 1; otherwise the default counts."""
NaturalOrDefault: TypeAlias = Annotated[int, Meta(ge=0), Corrected()]
"""A whole number of at least 0; otherwise the default counts."""
ShareOrDefault: TypeAlias = Annotated[float, Meta(ge=0, le=1), Corrected()]
"""A number between 0 and 1; otherwise the default counts."""
ThresholdOrDefault: TypeAlias = Annotated[float, Meta(gt=0), Corrected()]
"""A number above 0, or infinity; otherwise the default counts."""
PositiveOrDefault: TypeAlias = Annotated[float, Meta(gt=0), Corrected(only=(0,))]
"""A number above 0; 0 stands for the default."""
NameOrDefault: TypeAlias = Annotated[str, Meta(min_length=1), Corrected()]
"""A text; the default counts for an empty one."""
AbsolutePath: TypeAlias = Annotated[
    str, Meta(pattern="^/"), Corrected(by="/{}".format, words="a path that starts with a slash")
]
"""The path of a URL; a slash is added in front where it is missing."""
PortOrZero: TypeAlias = Annotated[
    Port | None, Corrected(by=lambda _: None, only=(0,), words="between 1 and 65535, or left out")
]
"""A TCP port; 0 counts as left out."""


def metas_of(annotation: Any) -> Iterator[Meta]:
    """Yield the limits in a type, the outermost first: `Annotated[...]` itself, and within lists and `| None`."""
    inner = get_args(annotation)
    if get_origin(annotation) is Annotated:
        yield from (extra for extra in inner[1:] if isinstance(extra, Meta))
        inner = inner[:1]
    for one in inner:
        yield from metas_of(one)


def described(meta: Meta) -> str:
    """Return the limits of a number in words, such as `at least 1`; empty for none."""
    finite = meta.le is not None and meta.le >= _LARGEST
    most = None if finite else meta.le
    if meta.ge is not None and most is not None:
        return f"between {meta.ge:.10g} and {most:.10g}"
    words = []
    if meta.ge is not None:
        words.append("0 or more" if meta.ge == 0 else f"at least {meta.ge:.10g}")
    if meta.gt is not None:
        words.append(f"above {meta.gt:.10g}")
    if most is not None:
        words.append(f"at most {most:.10g}")
    if meta.lt is not None:
        words.append(f"below {meta.lt:.10g}")
    return " and ".join(words) + (", and finite" if finite else "")
