"""`epp plugins`: the installed plugin types, with parameters and defaults."""

from collections.abc import Iterator

import typer
from rich.markup import escape

from epp.cli.commands import PluginOutput, Plugins
from epp.cli.output import exit_on, indented, new_console, print_json
from epp.config.plugin_data import data_markdown
from epp.config.plugin_markdown import plugin_markdown
from epp.config.plugin_reference import ParameterEntry, PluginEntry, plugin_entries
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
    console = new_console()
    for entry in entries:
        note = "" if entry.stability == "Beta" else f" [dim]({entry.stability})[/]"
        console.print(f"{entry.roles[0]} [cyan]{entry.type}[/]{note}", soft_wrap=True)
        if entry.parameters:
            given = ", ".join(f"{p.name}={p.default or 'required'}" for p in entry.parameters)
            console.print(indented(f"[dim]{escape(given)}[/]", 4))


def _show_in_full(entry: PluginEntry) -> None:
    console = new_console()
    console.print(f"[cyan]{entry.type}[/] ({', '.join(entry.roles)}; {entry.stability})")
    for paragraph in entry.text.split("\n\n"):
        console.print(" ".join(paragraph.split()) + "\n", markup=False)
    for name, parameter in _flattened(entry.parameters):
        default = f"default {parameter.default}" if parameter.default else "required"
        console.print(indented(f"[cyan]{escape(name)}[/]: {escape(f'{parameter.type}; {default}')}", 2))
        console.print(indented(escape(parameter.text), 6))


def _flattened(parameters: tuple[ParameterEntry, ...], prefix: str = "") -> Iterator[tuple[str, ParameterEntry]]:
    """Yield each parameter with its path, before those within it."""
    for parameter in parameters:
        yield prefix + parameter.name, parameter
        yield from _flattened(parameter.fields, f"{prefix}{parameter.name}.")
