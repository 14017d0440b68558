# SPDX-License-Identifier: Apache-2.0
"""The head of a report of `epp check`, and its errors and warnings."""

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.text import Text

from epp.cli.output import print_labelled


def show_findings(
    console: Console,
    title: str,
    errors: Sequence[object],
    warnings: Sequence[object],
    notes: Sequence[object] = (),
    *,
    skipped: str = "",
) -> None:
    """Print them; `skipped` is why there was nothing to check."""
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
