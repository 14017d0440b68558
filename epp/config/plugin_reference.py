# SPDX-License-Identifier: Apache-2.0
"""The generated references: every plugin type with its parameters, and the data that plugins read and write."""

import ast
import inspect
import textwrap
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from functools import cache
from itertools import groupby, pairwise
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

import epp.framework
from epp.framework import expected_times, limits, quotas, request, scoring, snapshot
from epp.framework.accelerators import arrays, selection
from epp.framework.clock import SystemClock
from epp.framework.errors import ConfigurationError
from epp.framework.limits import Corrected, Tunable
from epp.framework.messages import described
from epp.framework.plugin import Datum, Parameters, all_roles, roles_of
from epp.framework.registry import BrokenType, Registry
from epp.framework.request import DataKey
from epp.framework.snapshot import Attribute, Column

OTHER = "Plugin"
"""Name for a plugin without a role."""

_ATOMS: Mapping[object, str] = types.MappingProxyType(
    {bool: "bool", int: "int", float: "float", str: "string", Any: "any", object: "any"}
)
_HEADINGS = {cls.__name__: cls.role.title for cls in all_roles()} | {OTHER: "Others"}
_MODULES = (snapshot, arrays, request, quotas, expected_times, scoring, selection)
_OWN = "the picker"
_KINDS = (
    (
        "Columns",
        Column,
        (
            "One number for each endpoint. `candidates.values(WAITING)` is an array with one entry for each candidate, "
            "NaN if it is not reported: the endpoint has no metrics, or its metrics are missing or stale. NaN is "
            "neither idle nor busy. `comparable_load(candidates, WAITING)` compares candidates, `expected_load` "
            "compares them with a limit: both replace NaN in `WAITING`, `RUNNING` and `KV_USAGE` by an estimate from "
            "the picker's own requests in flight, on the scale of the candidates with metrics; `fill_unknown` does "
            "this for any load."
        ),
    ),
    (
        "Attributes",
        Attribute,
        "One record for each endpoint. `candidates.records(LORA)` is a list with one entry for each candidate.",
    ),
    ("Request data", DataKey, "One value for each request. `request.get(PREFIX_MATCH)` is None if no plugin wrote it."),
)


class ParameterEntry(msgspec.Struct, frozen=True, rename="camel"):
    name: str
    type: str
    default: str
    """Default as JSON; empty for a required parameter."""
    text: str
    fields: tuple["ParameterEntry", ...] = ()
    """Fields of an object, or of each object in a list."""


class PluginEntry(msgspec.Struct, frozen=True, rename="camel"):
    type: str
    roles: tuple[str, ...]
    stability: str
    text: str
    parameters: tuple[ParameterEntry, ...] = ()


class Reference(msgspec.Struct, frozen=True):
    plugins: tuple[PluginEntry, ...]
    """Sorted by first role and name."""
    broken: tuple[BrokenType, ...]
    """Types that cannot be loaded or described."""


def plugin_reference(registry: Registry) -> Reference:
    classes, broken = registry.load_all()
    entries: list[PluginEntry] = []
    for name, cls in classes.items():
        try:
            entries.append(
                PluginEntry(
                    type=cls.plugin_type,
                    roles=tuple(role.__name__ for role in roles_of(cls)) or (OTHER,),
                    stability=cls.stability.value,
                    text=inspect.cleandoc(cls.__doc__ or ""),
                    parameters=_parameters(cls.parameters_type),
                )
            )
        except Exception as error:  # noqa: BLE001  a class may raise anything when it is described
            reason = f"cannot be described: {described(error)}"
            broken.append(BrokenType(name, cls.__module__.partition(".")[0], reason))
    order = [*(cls.__name__ for cls in all_roles()), OTHER]
    entries.sort(key=lambda entry: (order.index(entry.roles[0]), entry.type))
    return Reference(tuple(entries), tuple(broken))


def _parameters(cls: type[msgspec.Struct]) -> tuple[ParameterEntry, ...]:
    texts: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if issubclass(base, msgspec.Struct) and base not in {Parameters, msgspec.Struct}:
            texts |= _own_field_texts(base)
    hints = get_type_hints(cls, include_extras=True)
    return tuple(
        ParameterEntry(
            name=field.encode_name,
            type=_type_name(hints[field.name]),
            default="" if default_of(field) is msgspec.NODEFAULT else msgspec.json.encode(default_of(field)).decode(),
            text=texts.get(field.name, ""),
            fields=_nested(hints[field.name]),
        )
        for field in msgspec.structs.fields(cls)
    )


def _nested(annotation: Any) -> tuple[ParameterEntry, ...]:
    if isinstance(annotation, type):
        return _parameters(annotation) if issubclass(annotation, msgspec.Struct) else ()
    return next((found for inner in get_args(annotation) if (found := _nested(inner))), ())


def default_of(field: msgspec.structs.FieldInfo) -> Any:
    """Return the default of a field; NODEFAULT for none."""
    return field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()


def _type_name(annotation: Any) -> str:
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        bounds = [limits.described(extra) for extra in inner[1:] if isinstance(extra, msgspec.Meta)]
        bounds += [extra.text for extra in inner[1:] if isinstance(extra, Corrected | Tunable)]
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


@cache  # finding the source of a class parses its whole file, which takes most of the time
def _own_field_texts(cls: type[msgspec.Struct]) -> Mapping[str, str]:
    """Return the docstring below each field that the class itself has."""
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    body = definition.body if isinstance(definition, ast.ClassDef) else []
    return {name: text for name, (_, text) in _assigned(body).items() if text}


def plugin_markdown(entries: Sequence[PluginEntry]) -> str:
    return "\n".join(_lines(entries)) + "\n"


def _lines(entries: Iterable[PluginEntry]) -> Iterator[str]:
    yield "# Plugins\n"
    yield "All plugin types and their parameters, generated from the code by `epp plugins --output markdown`."
    for role, members in groupby(entries, key=lambda entry: entry.roles[0]):
        yield f"\n## {_HEADINGS[role]}"
        for entry in members:
            yield from _plugin(entry)


def _plugin(entry: PluginEntry) -> Iterator[str]:
    yield f"\n### {entry.type}\n"
    others = [_HEADINGS[role].lower() for role in entry.roles[1:]]
    notes = [entry.stability.lower()] if entry.stability != "Beta" else []
    notes += [f"also among: {', '.join(others)}"] if others else []
    if notes:
        yield f"*{'; '.join(notes)}*\n"
    yield entry.text
    if entry.parameters:
        yield "\n| parameter | type | default | |\n|---|---|---|---|"
        yield from _rows(entry.parameters, "")


def _rows(parameters: Iterable[ParameterEntry], prefix: str) -> Iterator[str]:
    for parameter in parameters:
        name = prefix + parameter.name
        default = f"`{_cell(parameter.default)}`" if parameter.default else "required"
        yield f"| `{name}` | {_cell(parameter.type)} | {default} | {_cell(parameter.text)} |"
        inner = f"{name}[]." if parameter.type.startswith("list") else f"{name}."
        yield from _rows(parameter.fields, inner)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def data_markdown(registry: Registry) -> str:
    """Return the page of columns, attributes and request data; plugin types that cannot be loaded are omitted."""
    return "\n".join(_data_lines(_writers(registry))) + "\n"


def _data_lines(writers: Mapping[str, list[str]]) -> Iterator[str]:
    yield "# Data for plugins\n"
    yield (
        "This page lists the data that plugins can read and write. It is generated from the code by `epp plugins "
        "--output data`. Import all names from `epp.framework`."
    )
    for title, kind, how in _KINDS:
        yield f"\n## {title}\n\n{how}\n"
        yield f"| Python | name | {'unit' if kind is Column else 'type'} | written by | |\n|---|---|---|---|---|"
        for python_name, datum, annotation, text in _data():
            if isinstance(datum, kind):
                unit = datum.unit if isinstance(datum, Column) else f"`{annotation}`"
                written = ", ".join(f"`{name}`" for name in writers.get(datum.name, ())) or (
                    _OWN if isinstance(datum, Column) else "no plugin yet"
                )
                yield f"| `{python_name}` | `{datum.name}` | {unit} | {written} | {text} |"


def _data() -> Iterator[tuple[str, Datum, str, str]]:
    """Yield Python name, datum, type argument and text of each exported datum."""
    for module in _MODULES:
        for name, (annotation, text) in _assigned(ast.parse(inspect.getsource(module)).body).items():
            datum = getattr(epp.framework, name, None)
            if isinstance(datum, Column | Attribute | DataKey):
                yield name, datum, annotation, text


def _assigned(body: Iterable[ast.stmt]) -> dict[str, tuple[str, str]]:
    """Return the type argument of each assigned name, and the string below it."""
    found: dict[str, tuple[str, str]] = {}
    for statement, below in pairwise([*body, ast.Pass()]):
        text = ""
        match below:
            case ast.Expr(value=ast.Constant(value=str(doc))):
                text = " ".join(doc.split())
        match statement:
            case ast.AnnAssign(target=ast.Name(id=name), annotation=ast.Subscript(slice=inner)):
                found[name] = (ast.unparse(inner), text)
            case ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]):
                found[name] = ("", text)
    return found


def _writers(registry: Registry) -> dict[str, list[str]]:
    """Return the plugin types that write each datum, with their default parameters."""
    writers: dict[str, list[str]] = {}
    classes, _ = registry.load_all()
    for kind, cls in sorted(classes.items()):
        written: tuple[Datum, ...] = cls.writes
        try:
            plugin: Any = registry.build(kind, {}, name=kind, clock=SystemClock())
            written = plugin.writes
        except ConfigurationError:
            pass  # it needs parameters
        for name in dict.fromkeys(datum.name for datum in written):
            writers.setdefault(name, []).append(kind)
    return writers
