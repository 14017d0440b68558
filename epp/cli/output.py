# SPDX-License-Identifier: Apache-2.0
"""Output of commands: tables and findings for terminals, and JSON for programs."""

import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
import structlog
import typer
from rich.console import Console, JustifyMethod
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from epp.framework import ConfigurationError

_PIPED_WIDTH = 160


def new_console() -> Console:
    """Return a console that prints names unchanged; 160 columns wide without a terminal."""
    console = Console(highlight=False, emoji=False)
    if not any(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr)):
        console.width = _PIPED_WIDTH
    return console


@contextmanager
def log_of_errors_only() -> Iterator[None]:
    """Log only errors, on stderr: the command reports warnings itself, and stdout must be pure JSON."""
    before = structlog.get_config()
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    try:
        yield
    finally:
        structlog.configure(**before)


@contextmanager
def progress_bar(
    title: str, total: Callable[[], float], *, shown: bool = True, console: Console | None = None
) -> Iterator[Callable[[float], None]]:
    """Show on a terminal, if `shown`, how much of `total` is done, and the time left.

    The context is the function that sets the part that is done. `total` is called only on a terminal.
    """
    console = console or Console(stderr=True)
    if not shown or not console.is_terminal:
        yield lambda _: None
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn  # noqa: PLC0415  few commands

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:.0f} %"))
    most = total()
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as bar:
        task = bar.add_task(title, total=most)
        yield lambda done: bar.update(task, completed=min(done, most))


def write_text(path: Path, text: str) -> None:
    """Write a file; raises ConfigurationError."""
    try:
        path.write_text(text)
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be written: {error.strerror}") from error


def plain_table(*headings: str, title: str | None = None) -> Table:
    """Return a table without borders; a column whose heading begins with `>` is for numbers."""
    table = Table(title=title, title_justify="left", box=None, pad_edge=title is not None)
    for heading in headings:
        justify: JustifyMethod = "right" if heading.startswith(">") else "left"
        table.add_column(heading.removeprefix(">"), justify=justify, overflow="fold")
    return table


def print_labelled(console: Console, label: str, text: str) -> None:
    """Print one line of markup; in a terminal, wrap it below the text."""
    if not console.is_terminal:
        console.print(f"{label}{text}", soft_wrap=True)
        return
    grid = Table.grid()
    grid.add_column(no_wrap=True, min_width=Text.from_markup(label).cell_len)
    grid.add_column(overflow="fold")
    grid.add_row(label, text)
    console.print(grid)


def indented(markup: str, columns: int) -> Padding:
    """Return an indented paragraph that wraps between words."""
    return Padding(Text.from_markup(markup), (0, 0, 0, columns), expand=False)


def print_json(value: object) -> None:
    typer.echo(msgspec.json.format(msgspec.json.encode(value)).decode())


def show_findings(
    console: Console,
    title: str,
    errors: Sequence[object],
    warnings: Sequence[object],
    notes: Sequence[object] = (),
    *,
    skipped: str = "",
) -> None:
    """Print the result of a check with its errors and warnings; `skipped` is the reason for no check."""
    words = [f"[red]refused[/], {_counted(len(errors), 'error')}" if errors else "[green]ok[/]"]
    words += [_counted(len(warnings), "warning")] if warnings else []
    if skipped:
        words = [f"[dim]skipped: {escape(skipped)}[/]"]
    head = f"[bold]{escape(title)}[/]:"
    if console.is_terminal and Text.from_markup(f"{head} {', '.join(words)}").cell_len > console.width:
        console.print(head)
        print_labelled(console, "  ", ", ".join(words))
    else:
        print_labelled(console, "", f"{head} {', '.join(words)}")
    for error in errors:
        print_labelled(console, "  [red]error[/]   ", escape(str(error)))
    for warning in warnings:
        print_labelled(console, "  [yellow]warning[/] ", escape(str(warning)))
    for note in notes:
        print_labelled(console, "  [dim]note[/]    ", escape(str(note)))


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
