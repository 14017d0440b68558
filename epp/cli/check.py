"""`epp check`: says of configuration files whether they can be used, what they come to, and what to look at again."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.markup import escape

from epp.cli.consoles import new_console
from epp.cli.flags import Experimental, PluginModules, Switch
from epp.cli.graph_tree import graph_tree
from epp.cli.picker_options import read_modules
from epp.config import Builder, InvalidConfigError, assemble, load_file
from epp.config.describe import Graph, describe
from epp.framework import ConfigurationError, SystemClock
from epp.framework.registry import Registry

REFUSED = 1
WARNED = 2


class Output(StrEnum):
    """Who reads it."""

    TEXT = "text"
    JSON = "json"


class Verdict(msgspec.Struct, frozen=True):
    """What was found of one file."""

    file: str
    errors: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    graph: Graph | None = None


def check(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="EndpointPickerConfig files.")],
    output: Annotated[Output, typer.Option(help="json for programs.")] = Output.TEXT,
    strict: Annotated[bool, typer.Option("--strict", help="End with exit code 2 where there are warnings.")] = False,
    allow_experimental_plugins: Experimental = Switch.FALSE,
    allow_plugin_modules: PluginModules = "",
) -> None:
    """Validate configuration files and show what they come to. Exit code 1: a file cannot be used."""
    registry = Registry(modules=read_modules(allow_plugin_modules))
    builder = Builder(registry, SystemClock(), experimental=bool(allow_experimental_plugins))
    verdicts = [judge(path, builder) for path in files]
    if output is Output.JSON:
        typer.echo(msgspec.json.format(msgspec.json.encode(verdicts)).decode())
    else:
        for verdict in verdicts:
            _show(verdict)
    if any(verdict.errors for verdict in verdicts):
        raise typer.Exit(REFUSED)
    if strict and any(verdict.warnings for verdict in verdicts):
        raise typer.Exit(WARNED)


def judge(path: Path, builder: Builder) -> Verdict:
    """Return what is to be said of a file."""
    try:
        assembly = assemble(load_file(path), builder)
    except InvalidConfigError as error:
        return Verdict(str(path), tuple(map(str, error.problems)))
    except ConfigurationError as error:
        return Verdict(str(path), (str(error),))
    return Verdict(str(path), (), tuple(map(str, assembly.warnings)), describe(assembly))


def _show(verdict: Verdict) -> None:
    console = new_console()
    errors, warnings = len(verdict.errors), len(verdict.warnings)
    words = [f"[red]refused[/], {_counted(errors, 'error')}" if errors else "[green]ok[/]"]
    words += [_counted(warnings, "warning")] if warnings else []
    console.print(f"[bold]{escape(verdict.file)}[/]: {', '.join(words)}", soft_wrap=True)
    for error in verdict.errors:
        console.print(f"  [red]error[/]   {escape(error)}", soft_wrap=True)
    for warning in verdict.warnings:
        console.print(f"  [yellow]warning[/] {escape(warning)}", soft_wrap=True)
    if verdict.graph is not None:
        console.print(graph_tree(verdict.graph))


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
