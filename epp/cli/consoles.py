"""Where commands print for people: nothing is guessed at, and what is piped is as wide as it needs to be."""

from rich.console import Console

_PIPED_WIDTH = 160


def new_console() -> Console:
    """Return a console that takes names as they are written."""
    console = Console(highlight=False, emoji=False)
    if not console.is_terminal:
        console.width = _PIPED_WIDTH
    return console
