# SPDX-License-Identifier: Apache-2.0
"""The `epp` command line, built from the flags of the commands."""

import inspect
from collections.abc import Callable
from importlib import import_module, metadata
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from epp.cli.commands import COMMANDS, GROUPS
from epp.cli.options import filled, go_spelling, is_list, is_switch, lists_joined, parameters

_SWITCHES_HELP = "A flag with [true|false] alone is true. A next word that is true, t, 1, false, f or 0 is its value."


class Command(TyperCommand):
    """A command that accepts the Go picker's spelling of flags."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.switches = frozenset(option for each in self.params if is_switch(each) for option in each.opts)
        self.lists = frozenset(option for each in self.params if is_list(each) for option in each.opts)
        if self.switches:
            self.epilog = _SWITCHES_HELP

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        spelling = go_spelling(args, self.switches)
        if spelling.without_effect and not ctx.resilient_parsing:
            import_module("epp.telemetry.logs").configure()  # -v is not read yet
            for flag in spelling.without_effect:
                import_module("structlog").get_logger().warning("flag has no effect", flag=flag)
        try:
            return super().parse_args(ctx, lists_joined(spelling.arguments, self.lists))
        except typer.TyperException as error:
            error.message = error.message.removeprefix("Value error, ")  # added by the library that typer uses
            if error.message.startswith("Got unexpected extra argument"):
                error.message += "; a value with blanks or semicolons belongs in quotes"
            raise


def application() -> typer.Typer:
    app = _group("An endpoint picker for LLM inference gateways: which model server, on which accelerator, and why.")
    app.callback()(_global_options)
    groups = {"": app} | {name: _group(summary) for name, summary in GROUPS.items()}
    for name, flags in COMMANDS.items():
        group, _, last_word = name.rpartition(" ")
        if group and group not in {info.name for info in app.registered_groups}:
            app.add_typer(groups[group], name=group, short_help=GROUPS[group])
        summary = inspect.cleandoc(flags.__doc__ or "").partition("\n\n")[0]
        groups[group].command(last_word, cls=Command, help=summary, short_help=summary)(_runner(name, flags))
    return app


def _group(summary: str) -> typer.Typer:
    return typer.Typer(
        help=summary,
        no_args_is_help=True,
        rich_markup_mode=None,  # prints flag names untruncated, and brackets unchanged
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )


def main() -> None:
    application()()


def _runner(name: str, flags: type[Any]) -> Callable[..., None]:
    """Return a function with the flags as parameters that runs a command."""
    module = name.partition(" ")[0].replace("-", "_")
    function = name.replace(" ", "_").replace("-", "_")

    def run(**values: object) -> None:
        try:
            given = filled(flags, values)
        except ValueError as error:
            typer.echo(f"error: {error}", err=True)
            raise typer.Exit(1) from error
        getattr(import_module(f"epp.cli.{module}"), function)(given)

    run.__signature__ = parameters(flags)  # type: ignore[attr-defined]  # typer makes options of it
    return run


def _print_version(wanted: bool) -> None:  # noqa: FBT001  as typer calls it
    if wanted:
        typer.echo(f"epp {metadata.version('inference-epp')}")
        raise typer.Exit


def _global_options(
    *,
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass
