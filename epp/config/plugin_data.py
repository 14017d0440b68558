# SPDX-License-Identifier: Apache-2.0
"""Writes the data that plugins can read and write as Markdown: columns, attributes and request data."""

import ast
import inspect
from collections.abc import Iterator, Mapping
from itertools import pairwise
from types import ModuleType
from typing import Any

import epp.framework
from epp.framework import quotas, rates, request, snapshot
from epp.framework.accelerators import arrays, selection
from epp.framework.clock import SystemClock
from epp.framework.errors import ConfigurationError
from epp.framework.plugin import Datum
from epp.framework.registry import Registry
from epp.framework.request import DataKey
from epp.framework.snapshot import Attribute, Column

_MODULES = (snapshot, arrays, request, quotas, rates, selection)
_OWN = "the picker"
_KINDS = (
    (
        "Columns",
        Column,
        (
            "One number for each endpoint. `candidates.values(WAITING)` is an array: one entry for each candidate, or "
            "NaN where it is not reported: the endpoint has no metrics page, or the page is gone or stale. NaN is "
            "neither idle nor busy. `comparable_load(candidates, WAITING)` compares candidates, `expected_load` holds "
            "them against a limit: both replace NaN in `WAITING`, `RUNNING` and `KV_USAGE` by an estimate from the "
            "picker's own requests in flight, on the scale of the candidates that report; `fill_unknown` does so for "
            "any load."
        ),
    ),
    (
        "Attributes",
        Attribute,
        "One record for each endpoint. `candidates.records(LORA)` is a list with one entry for each candidate.",
    ),
    (
        "Request data",
        DataKey,
        "One value for each request. `request.get(PREFIX_MATCH)` is None where no plugin wrote it.",
    ),
)


def data_markdown(registry: Registry) -> str:
    """Return the whole page; plugin types that cannot be loaded are left out."""
    return "\n".join(_lines(_writers(registry))) + "\n"


def _lines(writers: Mapping[str, list[str]]) -> Iterator[str]:
    yield "# Data for plugins"
    yield ""
    yield (
        "Everything that plugins can read and write, written by `epp plugins --output data` from the code itself. "
        "All names are imported from `epp.framework`."
    )
    for title, kind, how in _KINDS:
        yield ""
        yield f"## {title}"
        yield ""
        yield how
        yield ""
        yield f"| Python | name | {'unit' if kind is Column else 'type'} | written by | |"
        yield "|---|---|---|---|---|"
        for python_name, datum, annotation, text in _data():
            if isinstance(datum, kind):
                unit = datum.unit if isinstance(datum, Column) else f"`{annotation}`"
                written = ", ".join(f"`{name}`" for name in writers.get(datum.name, ())) or (
                    _OWN if isinstance(datum, Column) else "no plugin yet"
                )
                yield f"| `{python_name}` | `{datum.name}` | {unit} | {written} | {text} |"


def _data() -> Iterator[tuple[str, Datum, str, str]]:
    """Yield name in Python, datum, type argument and text of all that the framework exports."""
    for module in _MODULES:
        for name, (annotation, text) in _constants(module).items():
            datum = getattr(epp.framework, name, None)
            if isinstance(datum, Column | Attribute | DataKey):
                yield name, datum, annotation, text


def _constants(module: ModuleType) -> dict[str, tuple[str, str]]:
    """Return the type argument and the string below each constant of a module."""
    found: dict[str, tuple[str, str]] = {}
    for statement, below in pairwise([*ast.parse(inspect.getsource(module)).body, ast.Pass()]):
        text = ""
        match below:
            case ast.Expr(value=ast.Constant(value=str(doc))):
                text = " ".join(doc.split())
        match statement:
            case ast.AnnAssign(target=ast.Name(id=name), annotation=ast.Subscript(slice=inner)):
                found[name] = (ast.unparse(inner), text)
            case ast.Assign(targets=[ast.Name(id=name)]):
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
