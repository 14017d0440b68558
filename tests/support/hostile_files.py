# SPDX-License-Identifier: Apache-2.0
"""What may stand in place of a file that a picker follows, in all the ways in which a write or a mount goes wrong."""

import os
import shutil
import socket
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.support.config_files import mount

Put = Callable[[Path, str], None]
"""Puts something in place of a file, given its path and its good content."""


def remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _with_bytes(content: bytes) -> Put:
    return lambda path, _good: path.write_bytes(content)


def _in_place_of(make: Callable[[Path], object]) -> Put:
    def put(path: Path, _good: str) -> None:
        remove(path)
        make(path)

    return put


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as bound:
        here = os.open(path.parent, os.O_RDONLY)
        try:
            bound.bind(f"/proc/self/fd/{here}/{path.name}")  # the path itself may be too long for a socket
        finally:
            os.close(here)


def _huge(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(65 * 1024 * 1024)  # a hole: takes no space


def _bomb(path: Path) -> None:
    lines = ["a0: &a0 [x]", *(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]" for i in range(1, 60))]
    path.write_text("\n".join([*lines, "endpoints: *a59", ""]))


def _unreadable(path: Path) -> None:
    path.write_text("x")
    path.chmod(0)


HOSTILE: Mapping[str, Put] = {
    "emptied in place": _with_bytes(b""),
    "cut in the middle": lambda path, good: path.write_text(good[: len(good) // 2]),
    "cut before the last byte but nine": lambda path, good: path.write_text(good[:-10]),
    "a directory": _in_place_of(Path.mkdir),
    "a pipe": _in_place_of(os.mkfifo),
    "a socket": _in_place_of(_socket),
    "an endless device": _in_place_of(lambda path: path.symlink_to("/dev/zero")),
    "a link to itself": _in_place_of(lambda path: path.symlink_to(path.name)),
    "a link to nothing": _in_place_of(lambda path: path.symlink_to("nowhere")),
    "gone": _in_place_of(lambda path: None),
    "65 MiB": _in_place_of(_huge),
    "no UTF-8": _with_bytes(b"\xff\xc3\x28"),
    "UTF-16": lambda path, good: path.write_bytes(good.encode("utf-16")),
    "zeros": lambda path, good: path.write_bytes(good.encode() + bytes(100)),
    "only zeros": _with_bytes(bytes(4096)),
    "a bomb of aliases": _in_place_of(_bomb),
    "20,000 brackets": _with_bytes(b"[" * 20_000),
    "20,000 indented keys": lambda path, _good: path.write_text("".join(" " * i + "a:\n" for i in range(1000))),
    "everything twice": lambda path, good: path.write_text(good + good),
    **({"unreadable": _in_place_of(_unreadable)} if os.geteuid() else {}),  # root may read it
}
"""None of them is a good version of any file."""

DISGUISED: Mapping[str, Put] = {
    "with a byte order mark": lambda path, good: path.write_bytes(b"\xef\xbb\xbf" + good.encode()),
    "with CRLF": lambda path, good: path.write_bytes(good.replace("\n", "\r\n").encode()),
    "behind two links": lambda path, good: mount(path.parent, {path.name: good}),
}
"""Good versions of any file, in forms of their own."""
