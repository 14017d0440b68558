"""`epp plugins`: the installed plugin types, with parameters and defaults."""

import typer
from rich.markup import escape
from rich.table import Table

from epp.cli.commands import PluginOutput, Plugins
from epp.cli.output import exit_on, new_console, print_json
from epp.config.plugin_data import data_markdown
from epp.config.plugin_markdown import plugin_markdown
from epp.config.plugin_reference import ParameterEntry, PluginEntry, plugin_entries
from epp.config.schema import config_schema
from epp.framework import ConfigurationError
from epp.framework.hints import hint_at
from epp.framework.registry import Registry


def plugins(flags: Plugins) -> None:
    """Print the plugin types in the format asked for."""
    registry = Registry()
    with exit_on(ConfigurationError):
        entries = _selected(plugin_entries(registry), flags.types or [])
    match flags.output:
        case PluginOutput.JSON:
            print_json(entries)
        case PluginOutput.MARKDOWN:
            typer.echo(plugin_markdown(entries), nl=False)
        case PluginOutput.DATA:
            typer.echo(data_markdown(registry), nl=False)
        case PluginOutput.SCHEMA:
            print_json(config_schema(registry))
        case PluginOutput.TEXT if flags.types:
            for entry in entries:
                _show_in_full(entry)
        case PluginOutput.TEXT:
            _show_all(entries)


def _selected(entries: list[PluginEntry], types: list[str]) -> list[PluginEntry]:
    known = {entry.type for entry in entries}
    for name in types:
        if name not in known:
            raise ConfigurationError(f"no plugin type {name!r}; {hint_at(name, known)}")
    return [entry for entry in entries if not types or entry.type in types]


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
