# SPDX-License-Identifier: Apache-2.0
"""Bars that show how much of a long work is done."""

import io

from rich.console import Console

from epp.cli.input_output import progress_bar


def shown_by(*, terminal: bool, shown: bool = True) -> str:
    console = Console(file=io.StringIO(), force_terminal=terminal, width=80)
    with progress_bar("reading", lambda: 200.0, shown=shown, console=console) as report:
        report(50.0)
    return console.file.getvalue()


def test_a_bar_shows_the_part_that_is_done_on_a_terminal_only():
    assert "25 %" in shown_by(terminal=True)
    assert "reading" not in shown_by(terminal=False)
    assert "reading" not in shown_by(terminal=True, shown=False)
