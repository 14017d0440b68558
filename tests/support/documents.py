# SPDX-License-Identifier: Apache-2.0
"""The code blocks of a document: files to write and commands to run, in their order."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class Block(NamedTuple):
    language: str
    text: str


def blocks(document: Path) -> list[Block]:
    return [
        Block(*found) for found in re.findall(r"^```(\w*)\n(.*?)^```$", document.read_text(), re.DOTALL | re.MULTILINE)
    ]


def commands(block: Block) -> Iterator[str]:
    """Yield the commands of a console block: what follows `$ `, with the lines that complete it. Others are output."""
    command = ""
    for line in block.text.splitlines():
        if command:
            command += f"\n{line}"
        elif line.startswith("$ "):
            command = line.removeprefix("$ ")
        if command and _is_complete(command):
            yield command
            command = ""
    assert not command, f"a quotation is not closed: {command}"


def _is_complete(command: str) -> bool:
    try:
        shlex.split(command, comments=True)
    except ValueError:  # an open quotation, or a backslash at the end
        return False
    return not command.endswith("\\")


def file_of(block: Block) -> tuple[str, str] | None:
    """Return name and text of the file that a block is: its first line is a comment with the name."""
    found = re.match(r"# ([\w/.-]+\.\w+)\n", block.text)
    return (found[1], block.text) if found else None
