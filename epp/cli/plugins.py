# SPDX-License-Identifier: Apache-2.0
"""`epp plugins`: the installed plugin types, with parameters and defaults."""

from collections.abc import Iterator, Mapping, Sequence

import typer
from rich.markup import escape

from epp.cli.commands import PluginOutput, Plugins
from epp.cli.input_output import indented, new_console, print_json
from epp.cli.running import exit_on
from epp.config.plugin_reference import ParameterEntry, PluginEntry, data_markdown, plugin_markdown, plugin_reference
from epp.framework import ConfigurationError
from epp.framework.registry import Registry
from epp.framework.suggestions import hint_at


def plugins(flags: Plugins) -> None:
    registry = Registry()
    reference = plugin_reference(registry)
    with exit_on(ConfigurationError):
        reasons = {one.type: one.reason for one in reference.broken}
        entries = _selected(reference.plugins, reasons, flags.types or [])
    broken = () if flags.types else reference.broken
    match flags.output:
        case PluginOutput.JSON:
            unusable = [{"type": one.type, "package": one.package, "broken": one.reason} for one in broken]
            print_json([*entries, *unusable])
        case PluginOutput.MARKDOWN:
            typer.echo(plugin_markdown(entries), nl=False)
        case PluginOutput.DATA:
            typer.echo(data_markdown(registry), nl=False)
        case PluginOutput.TEXT if flags.types:
            for entry in entries:
                _show_in_full(entry)
        case PluginOutput.TEXT:
            _show_all(entries)
    for one in broken:
        typer.echo(f"broken: {one.type} (of {one.package}): {one.reason}", err=True)


def _selected(plugins: Sequence[PluginEntry], broken: Mapping[str, str], types: list[str]) -> list[PluginEntry]:
    known = {entry.type for entry in plugins}
    for name in types:
        if name not in known:
            problem = broken.get(name) or f"no plugin type {name!r}; {hint_at(name, known)}"
            raise ConfigurationError(problem, remedy="" if name in broken else "`epp plugins` lists all types")
    return [entry for entry in plugins if not types or entry.type in types]


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
        first, *items = paragraph.split("\n- ")
        for text in (first, *(f"- {item}" for item in items)):
            console.print(" ".join(text.split()), markup=False)
        console.print()
    for name, parameter in _flattened(entry.parameters):
        default = f"default {parameter.default}" if parameter.default else "required"
        console.print(indented(f"[cyan]{escape(name)}[/]: {escape(f'{parameter.type}; {default}')}", 2))
        console.print(indented(escape(parameter.text), 6))


def _flattened(parameters: tuple[ParameterEntry, ...], prefix: str = "") -> Iterator[tuple[str, ParameterEntry]]:
    """Yield each parameter with its path, before its fields."""
    for parameter in parameters:
        yield prefix + parameter.name, parameter
        yield from _flattened(parameter.fields, f"{prefix}{parameter.name}.")
