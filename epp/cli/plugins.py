"""`epp plugins`: the installed plugin types, with parameters and defaults."""

from enum import StrEnum
from typing import Annotated

import msgspec
import typer
from rich.markup import escape
from rich.table import Table

from epp.cli.output import exit_on, new_console, print_json
from epp.config.plugin_data import data_markdown
from epp.config.plugin_markdown import plugin_markdown
from epp.config.plugin_reference import ParameterEntry, PluginEntry, Reference, plugin_reference
from epp.config.schema import config_schema
from epp.framework import ConfigurationError
from epp.framework.hints import hint_at
from epp.framework.registry import Registry


class Output(StrEnum):
    """Output formats."""

    TEXT = "text"
    JSON = "json"
    MARKDOWN = "markdown"
    SCHEMA = "schema"
    DATA = "data"


def plugins(
    types: Annotated[list[str] | None, typer.Argument(metavar="TYPE", help="Show these alone, in full.")] = None,
    output: Annotated[
        Output,
        typer.Option(
            help="json for programs; markdown for config/PLUGINS.md; schema for editors; data for docs/plugin-data.md."
        ),
    ] = Output.TEXT,
) -> None:
    """List plugin types with parameters and defaults."""
    registry = Registry()
    reference = plugin_reference(registry)
    with exit_on(ConfigurationError):
        entries = _selected(reference, types or [])
    broken = () if types else reference.broken
    match output:
        case Output.JSON:
            print_json([*entries, *(_BrokenEntry(one.type, one.package, one.reason) for one in broken)])
        case Output.MARKDOWN:
            typer.echo(plugin_markdown(entries), nl=False)
        case Output.DATA:
            typer.echo(data_markdown(registry), nl=False)
        case Output.SCHEMA:
            print_json(config_schema(registry))
        case Output.TEXT if types:
            for entry in entries:
                _show_in_full(entry)
        case Output.TEXT:
            _show_all(entries)
    for one in broken:
        typer.echo(f"broken: {one.type} (of {one.package}): {one.reason}", err=True)


class _BrokenEntry(msgspec.Struct, frozen=True):
    """A type that cannot be used, among the others for programs."""

    type: str
    package: str
    broken: str
    """Reason."""


def _selected(reference: Reference, types: list[str]) -> list[PluginEntry]:
    known = {entry.type for entry in reference.plugins}
    broken = {one.type: one.reason for one in reference.broken}
    for name in types:
        if name not in known:
            raise ConfigurationError(broken.get(name) or f"no plugin type {name!r}; {hint_at(name, known)}")
    return [entry for entry in reference.plugins if not types or entry.type in types]


def _show_all(entries: list[PluginEntry]) -> None:
    table = Table(box=None, pad_edge=False)
    for heading in ("role", "type", "parameters"):
        table.add_column(heading, overflow="fold", no_wrap=heading == "type")  # names stay searchable
    for entry in entries:
        given = ", ".join(f"{p.name}={p.default or 'required'}" for p in entry.parameters)
        note = "" if entry.stability == "Beta" else f" [dim]{entry.stability}[/]"
        table.add_row(entry.roles[0], f"[cyan]{entry.type}[/]{note}", f"[dim]{escape(given)}[/]")
    new_console().print(table)


def _show_in_full(entry: PluginEntry) -> None:
    console = new_console()
    console.print(f"[cyan]{entry.type}[/] ({', '.join(entry.roles)}; {entry.stability})")
    for paragraph in entry.text.split("\n\n"):
        console.print(" ".join(paragraph.split()) + "\n", markup=False)
    if entry.parameters:
        table = Table(box=None, pad_edge=False)
        for heading in ("parameter", "type", "default", ""):
            table.add_column(heading, overflow="fold", no_wrap=heading == "parameter")  # names stay searchable
        _add_rows(table, entry.parameters, "")
        console.print(table)


def _add_rows(table: Table, parameters: tuple[ParameterEntry, ...], prefix: str) -> None:
    for parameter in parameters:
        cells = (prefix + parameter.name, parameter.type, parameter.default or "required", parameter.text)
        table.add_row(*map(escape, cells))
        _add_rows(table, parameter.fields, f"{prefix}{parameter.name}.")
