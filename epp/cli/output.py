# SPDX-License-Identifier: Apache-2.0
"""Output of commands: tables for terminals, and JSON for programs."""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import structlog
import typer
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

_PIPED_WIDTH = 160


def new_console() -> Console:
    """Return a console that prints names unchanged; 160 columns wide without a terminal."""
    console = Console(highlight=False, emoji=False)
    if not any(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr)):
        console.width = _PIPED_WIDTH
    return console


@contextmanager
def log_of_errors_only() -> Iterator[None]:
    """Keep warnings out of the log: the report of the command has them, and its JSON nothing else beside."""
    before = structlog.get_config()
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    try:
        yield
    finally:
        structlog.configure(**before)


def print_labelled(console: Console, label: str, text: str) -> None:
    """Print one line, markup; what a terminal has no room for goes on below the text. Without one it stays one line."""
    if not console.is_terminal:
        console.print(f"{label}{text}", soft_wrap=True)
        return
    grid = Table.grid()
    grid.add_column(no_wrap=True, min_width=Text.from_markup(label).cell_len)
    grid.add_column(overflow="fold")
    grid.add_row(label, text)
    console.print(grid)


def indented(markup: str, columns: int) -> Padding:
    """Return a paragraph to print, wrapped between words at any width."""
    return Padding(Text.from_markup(markup), (0, 0, 0, columns), expand=False)


def print_json(value: object) -> None:
    """Print a value as indented JSON."""
    typer.echo(msgspec.json.format(msgspec.json.encode(value)).decode())
