# SPDX-License-Identifier: Apache-2.0
"""The fuzz targets by name, their corpora, and random mutations."""

import contextlib
import importlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random

TARGETS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "session": ("session_target", ("epp.extproc", "epp.routing.director")),
    "bodies": ("bodies_target", ("epp.routing.bodies",)),
    "exposition": (
        "exposition_target",
        ("epp.pool.collectors.exposition", "epp.pool.collectors.page_limits", "epp.pool.collectors.engine"),
    ),
    "config": ("config_target", ("epp.config", "epp.framework.plain_yaml")),
}
"""Module of a target, and the packages whose coverage counts."""
CORPORA = Path(__file__).parent / "corpora"
_TOKENS = (
    b"{",
    b"}",
    b"[",
    b'"',
    b"\\",
    b"\n",
    b"\r",
    b": ",
    b"\0",
    b"\xff",
    b"model",
    b"usage",
    b"data:",
    b"- ",
    b"&a",
    b"*a",
)
_MOST_BYTES = 20_000


class FuzzTarget:
    """Code that must handle any bytes."""

    def __call__(self, content: bytes) -> None:
        """Run it with bytes; raises AssertionError, or an exception that the code under test must not raise."""
        raise NotImplementedError

    def close(self) -> None:
        """Release its resources."""


@contextlib.contextmanager
def new_target(name: str) -> Iterator[FuzzTarget]:
    """Run a target until the block ends."""
    made: FuzzTarget = importlib.import_module(f"perf.fuzz.{TARGETS[name][0]}").Target()
    try:
        yield made
    finally:
        made.close()


def corpus(name: str) -> dict[str, bytes]:
    """Return the inputs of a target by the names of their files."""
    return {path.name: path.read_bytes() for path in sorted((CORPORA / name).iterdir())}


def mutated(random: Random, inputs: list[bytes]) -> bytes:
    """Return one of the inputs with some mutations."""
    changed = bytearray(random.choice(inputs))
    for _ in range(random.choice((1, 1, 2, 4, 8))):
        at, size = random.randrange(len(changed) + 1), random.choice((1, 1, 2, 8, 64))
        match random.randrange(6):
            case 0 if at < len(changed):
                changed[at] ^= 1 << random.randrange(8)
            case 1 if at < len(changed):
                changed[at] = random.randrange(256)
            case 2:
                del changed[at : at + size]
            case 3:
                changed[at:at] = changed[at : at + size] * random.choice((1, 2, 16))
            case 4:
                other = random.choice(inputs)
                start = random.randrange(len(other) + 1)
                changed[at:at] = other[start : start + 4 * size]
            case _:
                changed[at:at] = random.choice(_TOKENS)
    return bytes(changed[:_MOST_BYTES])
