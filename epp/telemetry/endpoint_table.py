# SPDX-License-Identifier: Apache-2.0
"""The state of all endpoints as a table on a terminal."""

import io
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from epp.telemetry.endpoints import MAX_ROWS, EndpointState


def as_text(states: Sequence[EndpointState], width: int) -> str:
    """Return a table for a terminal of that width: of a large pool, the endpoints that need attention."""
    shown = states if len(states) <= MAX_ROWS else [state for state in states if state.needs_attention][:MAX_ROWS]
    used = sum(state.used for state in states)
    table = Table(
        title=f"endpoints: {used} of {len(states)} used", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False
    )
    table.add_column("endpoint", overflow="fold", max_width=max(width * 2 // 5, 12))
    table.add_column("used", no_wrap=True)
    table.add_column("why, and what to do", overflow="fold")
    for state in shown:
        name = state.name if state.name == state.address else f"{state.name}\n{state.address}"
        style = "" if not state.needs_attention else "yellow" if state.used else "red"
        why = f"{state.why}\n-> {state.remedy}" if state.remedy else state.why
        cells = (name, "yes" if state.used else "no", why)
        table.add_row(*map(Text, cells), style=style)
    left_out = [state for state in states if state not in shown]
    if left_out:
        more = sum(state.needs_attention for state in left_out)
        table.caption = f"and {len(left_out)} more, of which {more} need attention"
    console = Console(file=io.StringIO(), force_terminal=True, width=width, highlight=False, emoji=False, markup=False)
    with console.capture() as capture:
        console.print(table)
    return capture.get()
