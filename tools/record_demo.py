# SPDX-License-Identifier: Apache-2.0
"""Records `epp demo` on a terminal of its own and writes its last screen to docs/demo.svg: `make picture`."""

import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

PICTURE = Path(__file__).parents[1] / "docs" / "demo.svg"
COMMAND = ("epp", "demo", "--traffic", "40")
DURATION = ("--duration", "12s")
COLUMNS, LINES = 100, 30
THEME = TerminalTheme(
    background=(24, 26, 31),
    foreground=(220, 223, 228),
    normal=[
        (24, 26, 31),
        (224, 108, 117),
        (152, 195, 121),
        (229, 192, 123),
        (97, 175, 239),
        (198, 120, 221),
        (86, 182, 194),
        (220, 223, 228),
    ],
)
# Without web fonts: a picture in a page may load nothing. Each line has its width, so any monospaced font fits.
FORMAT = """\
<svg xmlns="http://www.w3.org/2000/svg" class="rich-terminal" viewBox="0 0 {width} {height}" role="img" \
aria-label="epp demo">
<style>
.{unique_id}-matrix {{
  font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace;
  font-size: {char_height}px; line-height: {line_height}px;
}}
.{unique_id}-title {{ font-family: system-ui, sans-serif; font-size: 16px; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" />
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""
_REDRAW = re.compile(r"(?:\r|\x1b\[1A|\x1b\[2K|\x1b\[\?25[hl])+")
"""What rich writes before it draws a table over the one before."""
_FOR_LOGS = "\nh100 "
"""How the line begins that the demo ends with."""


def recorded() -> str:
    """Run the demo for a while, and return all that it wrote to its terminal."""
    parent, child = pty.openpty()
    fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(COLUMNS), "LINES": str(LINES)}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    process = subprocess.Popen([*COMMAND, *DURATION], stdin=child, stdout=child, stderr=child, env=environment)
    os.close(child)
    written = b""
    while piece := _read(parent):
        written += piece
    os.close(parent)
    if process.wait() != 0:
        sys.exit(f"{' '.join(COMMAND)} failed:\n{written.decode()}")
    return written.decode().replace("\r\n", "\n")


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # the other side is closed
        return b""


def last_screen(written: str) -> str:
    """Return the introduction and the last table; the line after it, for logs, is left out."""
    introduction, *tables = _REDRAW.split(written)
    drawn = [table for table in tables if "last request: " in table]
    table, last, rest = drawn[-1].rpartition("last request: ")
    caption = rest.partition(_FOR_LOGS)[0].rstrip()
    return f"$ {' '.join(COMMAND)}\n{introduction.rstrip()}\n\n{table}{last}{caption}"


def main() -> None:
    """Write the picture."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(Text.from_ansi(last_screen(recorded())))
    svg = console.export_svg(title="epp demo", theme=THEME, code_format=FORMAT, unique_id="demo")
    PICTURE.write_text("\n".join(line.rstrip() for line in svg.splitlines()) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
