# SPDX-License-Identifier: Apache-2.0
"""Types with limits for plugin parameters; messages, reference and schema derive from them."""

import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Annotated, Any, NamedTuple, TypeAlias, Union, get_args, get_origin

import msgspec
from msgspec import Meta

__all__ = ["Count", "Name", "Natural", "NonNegative", "Port", "Positive", "PositiveShare", "Share", "Tunable"]

_LARGEST = sys.float_info.max
Count: TypeAlias = Annotated[int, Meta(ge=1)]
Natural: TypeAlias = Annotated[int, Meta(ge=0)]
Port: TypeAlias = Annotated[int, Meta(ge=1, le=65535)]
Share: TypeAlias = Annotated[float, Meta(ge=0, le=1)]
PositiveShare: TypeAlias = Annotated[float, Meta(gt=0, le=1)]
"""A number above 0 and up to 1."""
NonNegative: TypeAlias = Annotated[float, Meta(ge=0, le=_LARGEST)]
Positive: TypeAlias = Annotated[float, Meta(gt=0, le=_LARGEST)]
Threshold: TypeAlias = Annotated[float, Meta(gt=0)]
"""A number above 0, or infinity for a threshold that is never reached."""
Weight: TypeAlias = Annotated[float, Meta(ge=0, le=1e6)]
"""A weight relative to others."""
Name: TypeAlias = Annotated[str, Meta(min_length=1)]


@dataclass(frozen=True, slots=True)
class Corrected:
    """Marks limits whose violation replaces the value, with a warning instead of an error, as in llm-d-router."""

    by: Callable[[Any], object] | None = None
    """Function that returns the replacement; None for the default of the parameter."""
    only: tuple[object, ...] = ()
    """Values to replace, while all others are errors; empty for all values outside the limits."""
    words: str = ""
    """Limit in words, such as `an absolute path`; by default derived from the limits."""

    def applies_to(self, value: object) -> bool:
        return not self.only or value in self.only

    @property
    def text(self) -> str:
        """Treatment of other values, for the reference."""
        what = "the default" if self.by is None else "corrected"
        return f"{what} for {', '.join(map(str, self.only))}" if self.only else f"{what} otherwise"


@dataclass(frozen=True, slots=True)
class Tunable:
    """Marks a parameter that `epp tune` varies, with the range of values to try."""

    low: float
    high: float
    log: bool = False
    """Whether steps are factors, for a parameter whose order of magnitude matters."""

    @property
    def text(self) -> str:
        """Range in words, for the reference."""
        return f"tuned between {self.low:,g} and {self.high:,g}"


CountOrDefault: TypeAlias = Annotated[int, Meta(ge=1), Corrected()]
"""A whole number of at least 1; the default replaces others."""
NaturalOrDefault: TypeAlias = Annotated[int, Meta(ge=0), Corrected()]
"""A whole number of at least 0; the default replaces others."""
ShareOrDefault: TypeAlias = Annotated[float, Meta(ge=0, le=1), Corrected()]
"""A number between 0 and 1; the default replaces others."""
ThresholdOrDefault: TypeAlias = Annotated[float, Meta(gt=0), Corrected()]
"""A number above 0, or infinity; the default replaces others."""
PositiveOrDefault: TypeAlias = Annotated[float, Meta(gt=0), Corrected(only=(0,))]
"""A number above 0; the default replaces 0."""
NameOrDefault: TypeAlias = Annotated[str, Meta(min_length=1), Corrected()]
"""A string; the default replaces an empty one."""
AbsolutePath: TypeAlias = Annotated[
    str, Meta(pattern="^/"), Corrected(by="/{}".format, words="a path that starts with a slash")
]
"""The path of a URL; a missing slash at the start is added."""
PortOrZero: TypeAlias = Annotated[
    Port | None, Corrected(by=lambda _: None, only=(0,), words="between 1 and 65535, or left out")
]
"""A TCP port; 0 is treated as left out."""


def require_weights(weights: Mapping[str, float]) -> None:
    """Raise ValueError with the names of the weights if all are 0."""
    if not sum(weights.values()):
        raise ValueError(f"{' and '.join(weights)} are all 0; set at least one of them above 0")


def metas_of(annotation: Any) -> Iterator[Meta]:
    """Yield the limits of a type and of the types within it, such as list items; the outermost come first."""
    inner = get_args(annotation)
    if get_origin(annotation) is Annotated:
        yield from (extra for extra in inner[1:] if isinstance(extra, Meta))
        inner = inner[:1]
    for one in inner:
        yield from metas_of(one)


def described(meta: Meta) -> str:
    """Return the limits of a number in words, such as `at least 1`; empty without limits."""
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


class Correction(NamedTuple):
    """A corrected parameter."""

    path: tuple[str | int, ...]
    """Path from the parameters to the corrected one."""
    message: str


def correct(cls: type[msgspec.Struct], data: Mapping[str, object]) -> tuple[dict[str, object], list[Correction]]:
    """Return the corrected plain data of a struct, and the corrections.

    A value outside limits that are marked `Corrected` is replaced. The case of keys is corrected. A whole number may be
    written `5.0`. A null value is treated as left out.
    """
    found: list[Correction] = []
    return _correct_struct(cls, data, (), found), found


def as_written(path: Iterable[str | int], data: object) -> tuple[str | int, ...]:
    """Return the path in the original data of a value in the corrected data."""
    found: list[str | int] = []
    for step in path:
        if isinstance(data, Mapping) and step not in data:
            step = next((key for key in data if str(key).lower() == str(step).lower()), step)  # noqa: PLW2901  as in the data
        found.append(step)
        try:
            data = data[step]  # type: ignore[index]  # errors are caught
        except (LookupError, TypeError):
            data = None
    return tuple(found)


def fits(annotation: Any, value: object) -> bool:
    """Return whether a value is of a type and within its limits."""
    try:
        msgspec.convert(value, annotation)
    except msgspec.ValidationError:
        return False
    return True


def struct_within(annotation: Any) -> type[msgspec.Struct] | None:
    """Return the struct in `Struct`, `Struct | None`, or a list or mapping of structs; None if there is none."""
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        return annotation
    return next(filter(None, map(struct_within, get_args(annotation))), None)


def _correct_struct(
    cls: type[msgspec.Struct], data: Mapping[str, object], path: tuple[str | int, ...], found: list[Correction]
) -> dict[str, object]:
    fields = {field.encode_name: field for field in msgspec.structs.fields(cls)}
    by_lower_case = {name.lower(): name for name in fields}
    corrected: dict[str, object] = {}
    for key, value in data.items():
        name = key if key in fields else by_lower_case.get(str(key).lower(), key)
        if name != key:
            if name in data:
                name = key
            else:
                found.append(Correction((*path, key), f"{key} is read as {name}: use this spelling"))
        field = fields.get(name)
        if field is None:
            corrected[name] = value
        elif value is not None or field.required or fits(field.type, None):
            corrected[name] = _correct_value(field, value, (*path, key), found)
    return corrected


def _correct_value(
    field: msgspec.structs.FieldInfo, value: object, path: tuple[str | int, ...], found: list[Correction]
) -> object:
    inner = struct_within(field.type)
    if inner is not None and isinstance(value, Mapping):
        if get_origin(field.type) in {dict, Mapping}:
            return {
                key: _correct_struct(inner, one, (*path, key), found) if isinstance(one, Mapping) else one
                for key, one in value.items()
            }
        return _correct_struct(inner, value, path, found)
    if inner is not None and isinstance(value, list) and value:
        return [
            _correct_struct(inner, one, (*path, index), found) if isinstance(one, Mapping) else one
            for index, one in enumerate(value)
        ]
    if isinstance(value, float) and value.is_integer() and not fits(_without_limits(field.type), value):
        value = int(value)
    mark = next((extra for extra in get_args(field.type) if isinstance(extra, Corrected)), None)
    if mark is None or not mark.applies_to(value) or fits(field.type, value):
        return value
    if not fits(_without_limits(field.type), value) or (isinstance(value, float) and not isfinite(value)):  # errors
        return value
    instead = _default(field) if mark.by is None else mark.by(value)
    found.append(Correction(path, _message(field, mark, value, instead)))
    return instead


def _message(field: msgspec.structs.FieldInfo, mark: Corrected, value: object, instead: object) -> str:
    name = field.encode_name
    counts = f"{_written(instead)} counts instead" if instead is not None else "it counts as left out"
    if value in ("", []):
        return f"{name} is empty: {counts}"
    words = mark.words or next((words for meta in metas_of(field.type) if (words := described(meta))), "")
    return f"{name} is {_written(value)}; it must be {words}: {counts}"


def _written(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else msgspec.json.encode(value).decode()


def _default(field: msgspec.structs.FieldInfo) -> object:
    default = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
    plain: object = msgspec.to_builtins(default)
    return plain


def _without_limits(annotation: Any) -> Any:
    """Return the type without its limits."""
    if get_origin(annotation) is Annotated:
        return _without_limits(get_args(annotation)[0])
    if get_origin(annotation) in {Union, types.UnionType}:
        return Union[tuple(map(_without_limits, get_args(annotation)))]  # noqa: UP007  types are known only at run time
    return annotation
