"""The `epp` command and its subcommands."""

import sys
from collections.abc import Sequence
from importlib import import_module

import typer

from epp.cli.go_flags import UnsupportedFlagError, go_spelling
from epp.observability import logs

COMMANDS = {
    "serve": "serve",
    "gateway": "gateway",
    "check": "check",
    "config": "config",
    "plugins": "plugins",
    "accelerators": "accelerators",
    "sim-server": "sim_server",
    "demo": "demo",
}
"""Name of each command, and of its module and function, or group of commands, in this package."""


def application(commands: Sequence[str] = tuple(COMMANDS)) -> typer.Typer:
    """Return the command line with these commands; the modules of others are not imported."""
    app = typer.Typer(
        name="epp",
        help="An endpoint picker for LLM inference gateways: which model server, on which accelerator, and why.",
        no_args_is_help=True,
        rich_markup_mode=None,  # prints flag names untruncated, and brackets unchanged
        pretty_exceptions_enable=False,
        add_completion=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(lambda: None)  # keeps a single command a subcommand
    for name in commands:
        module = import_module(f"epp.cli.{COMMANDS[name]}")
        command = getattr(module, COMMANDS[name])
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name)
        else:
            app.command(name)(command)
    return app


def main() -> None:
    """Run the command line."""
    logs.configure()  # for warnings about flags, before -v is read
    try:
        arguments = go_spelling(sys.argv[1:])
    except UnsupportedFlagError as error:
        sys.exit(f"error: {error}")
    command = arguments[0] if arguments and arguments[0] in COMMANDS else None
    app = application() if command is None else application([command])
    app(args=arguments)
