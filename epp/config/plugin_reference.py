# SPDX-License-Identifier: Apache-2.0
"""What every plugin type is and takes, read from its class: text, roles, parameters and data."""

import ast
import inspect
import textwrap
import types
from collections.abc import Mapping, Sequence
from enum import Enum
from itertools import pairwise
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

from epp.framework import limits
from epp.framework.limits import Corrected
from epp.framework.messages import described
from epp.framework.plugin import Parameters, Plugin, all_roles, roles_of
from epp.framework.registry import BrokenType, Registry

OTHER = "Plugin"
"""Stands for the role of a plugin that has none of these."""

_ATOMS: Mapping[object, str] = types.MappingProxyType(
    {bool: "bool", int: "int", float: "float", str: "string", Any: "any", object: "any"}
)


class ParameterEntry(msgspec.Struct, frozen=True, rename="camel"):
    """One parameter."""

    name: str
    type: str
    default: str
    """As JSON; empty for one that must be given."""
    text: str
    fields: tuple["ParameterEntry", ...] = ()
    """Of an object, or of each object in a list."""


class PluginEntry(msgspec.Struct, frozen=True, rename="camel"):
    """One plugin type."""

    type: str
    roles: tuple[str, ...]
    stability: str
    text: str
    parameters: tuple[ParameterEntry, ...] = ()


class Reference(msgspec.Struct, frozen=True):
    """All registered plugin types."""

    plugins: tuple[PluginEntry, ...]
    """By first role and name."""
    broken: tuple[BrokenType, ...]
    """Those that cannot be loaded or described; they concern only configurations that name them."""


def plugin_reference(registry: Registry) -> Reference:
    """Return what all registered types are and take."""
    classes, broken = registry.load_all()
    entries: list[PluginEntry] = []
    for name, cls in classes.items():
        try:
            entries.append(_entry(cls))
        except Exception as error:  # noqa: BLE001  a class may say anything of its parameters
            broken.append(
                BrokenType(name, cls.__module__.partition(".")[0], f"cannot be described: {described(error)}")
            )
    order = [*(cls.__name__ for cls in all_roles()), OTHER]
    entries.sort(key=lambda entry: (order.index(entry.roles[0]), entry.type))
    return Reference(tuple(entries), tuple(broken))


def _entry(cls: type[Plugin[Any]]) -> PluginEntry:
    return PluginEntry(
        type=cls.plugin_type,
        roles=tuple(role.__name__ for role in roles_of(cls)) or (OTHER,),
        stability=cls.stability.value,
        text=inspect.cleandoc(cls.__doc__ or ""),
        parameters=_parameters(cls.parameters_type),
    )


def _parameters(cls: type[msgspec.Struct]) -> tuple[ParameterEntry, ...]:
    texts = _field_texts(cls)
    hints = get_type_hints(cls, include_extras=True)
    return tuple(
        ParameterEntry(
            name=field.encode_name,
            type=_type_name(hints[field.name]),
            default=_default(field),
            text=texts.get(field.name, ""),
            fields=_nested(hints[field.name]),
        )
        for field in msgspec.structs.fields(cls)
    )


def _nested(annotation: Any) -> tuple[ParameterEntry, ...]:
    if isinstance(annotation, type):
        return _parameters(annotation) if issubclass(annotation, msgspec.Struct) else ()
    return next((found for inner in get_args(annotation) if (found := _nested(inner))), ())


def _default(field: msgspec.structs.FieldInfo) -> str:
    if field.default is not msgspec.NODEFAULT:
        value = field.default
    elif field.default_factory is not msgspec.NODEFAULT:
        value = field.default_factory()
    else:
        return ""
    return msgspec.json.encode(value).decode()


def _type_name(annotation: Any) -> str:
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        bounds = [limits.described(extra) for extra in inner[1:] if isinstance(extra, msgspec.Meta)]
        bounds += [extra.text for extra in inner[1:] if isinstance(extra, Corrected)]
        return ", ".join(filter(None, [_type_name(inner[0]), *bounds]))
    if origin is Literal:
        return " | ".join(map(str, inner))
    if origin in {Union, types.UnionType}:
        return " | ".join(_type_name(one) for one in inner if one is not types.NoneType)
    if origin in {tuple, list, frozenset, set, Sequence}:
        return f"list of {_type_name(inner[0])}"
    if origin in {dict, Mapping}:
        return f"map of {_type_name(inner[1])}"
    return _ATOMS.get(annotation) or _class_name(annotation)


def _class_name(annotation: Any) -> str:
    if not isinstance(annotation, type):
        return str(annotation)
    if issubclass(annotation, Enum):
        return " | ".join(str(member.value) for member in annotation)
    if issubclass(annotation, tuple):
        return "list"
    return "object" if issubclass(annotation, msgspec.Struct) else annotation.__name__


def _field_texts(cls: type[msgspec.Struct]) -> dict[str, str]:
    """Return the docstring below each field, of the class and its bases."""
    texts: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if not issubclass(base, msgspec.Struct) or base in {Parameters, msgspec.Struct}:
            continue
        (definition,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        body = definition.body if isinstance(definition, ast.ClassDef) else []
        for field, below in pairwise(body):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                match below:
                    case ast.Expr(value=ast.Constant(value=str(text))):
                        texts[field.target.id] = " ".join(text.split())
    return texts
