"""Output of commands: tables for terminals, JSON for programs, and errors as one line."""

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import typer
from rich.console import Console

_PIPED_WIDTH = 160


def new_console() -> Console:
    """Return a console that prints names unchanged; 160 columns wide without a terminal."""
    console = Console(highlight=False, emoji=False)
    if not console.is_terminal:
        console.width = _PIPED_WIDTH
    return console


def print_json(value: object) -> None:
    """Print a value as indented JSON."""
    typer.echo(msgspec.json.format(msgspec.json.encode(value)).decode())


@contextmanager
def exit_on(*expected: type[Exception]) -> Iterator[None]:
    """Print an expected error as one line and exit with code 1."""
    try:
        yield
    except expected as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from error
