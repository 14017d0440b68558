# SPDX-License-Identifier: Apache-2.0
"""The picture at the top of README.md: it loads nothing, and shows the last table that the demo drew."""

import importlib.util
import io
import re
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.text import Text

from epp.framework import Endpoint, ManualClock
from epp.lab.demo.traffic import table
from epp.routing.datastore import Datastore

DOCS = Path(__file__).parents[2] / "docs"
_spec = importlib.util.spec_from_file_location("record_demo", DOCS.parent / "tools" / "record_demo.py")
record_demo = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(record_demo)


def test_picture_is_small_and_whole_and_loads_nothing():
    text = (DOCS / "demo.svg").read_text()
    assert len(text) < 50_000
    assert text.startswith("<svg ")
    assert text.endswith("</svg>\n")
    tags = re.sub(r">[^<]*<", "><", text)
    assert re.findall(r"\w+://[^\"]+", tags) == ["http://www.w3.org/2000/svg"]  # the name of the format
    assert all(target.startswith("#") for target in re.findall(r"url\(([^)]*)", text))
    assert "@import" not in text


def test_last_of_the_tables_is_shown_below_the_introduction():
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=80)
    store = Datastore(ManualClock())
    store.replace([Endpoint("h100", "127.0.0.1", 8000)])
    print("Three servers.\n", file=screen)
    with Live(table(store.snapshot(), "last request: none yet"), console=console, auto_refresh=False) as live:
        live.update(table(store.snapshot(), "last request: h100, default: best of 3"), refresh=True)
    print("h100 up: served 22", file=screen)
    shown = record_demo.last_screen(screen.getvalue())
    assert shown.startswith(f"$ {' '.join(record_demo.COMMAND)}\nThree servers.\n\n")
    assert "127.0.0.1:8000" in shown
    assert "none yet" not in shown
    assert Text.from_ansi(shown).plain.rstrip().endswith("last request: h100, default: best of 3")
