# SPDX-License-Identifier: Apache-2.0
"""What threads and tasks are at, as pprof shows goroutines."""

import asyncio
import sys
import threading
from collections.abc import Iterator, Sequence
from itertools import islice
from types import FrameType
from typing import Any, NamedTuple

from epp.debugging.stack import MOST_CALLS, Kind, Place, Profile, Stack, stack_of

_MOST_TASKS = 5_000
_AT_A_TIME = 100
"""Tasks that are looked at in one turn of the event loop: a millisecond."""


class Running(NamedTuple):
    """A thread, or a task of the event loop."""

    name: str
    stack: Stack


def threads() -> Sequence[Running]:
    """Return the threads of this process."""
    frames = sys._current_frames()  # noqa: SLF001  the only way to the frames of other threads
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return [Running(f"thread {names.get(ident, ident)}", stack_of(frame)) for ident, frame in frames.items()]


def tasks() -> Iterator[Sequence[Running]]:
    """Yield the tasks of the event loop that runs, some at a time; for that loop's thread, between its turns."""
    waiting = list(islice(asyncio.all_tasks(), _MOST_TASKS))
    for start in range(0, len(waiting), _AT_A_TIME):
        chosen = waiting[start : start + _AT_A_TIME]
        yield [Running(f"task {task.get_name()}", _stack(task.get_coro())) for task in chosen if not task.done()]


def as_profile(found: Sequence[Running]) -> Profile:
    """Return how many have each stack."""
    kind = Kind("goroutine", "count")
    profile = Profile((kind,), kind, 1)
    for each in found:
        profile.add(each.stack, "", 1)
    return profile


def as_text(found: Sequence[Running]) -> str:
    """Return each with its name, innermost call first."""
    return "\n".join(f"{each.name}:\n{_lines(each.stack)}" for each in found)


def as_groups(found: Sequence[Running]) -> str:
    """Return each stack once, and how many have it; the most first."""
    counts: dict[Stack, int] = {}
    for each in found:
        counts[each.stack] = counts.get(each.stack, 0) + 1
    ordered = sorted(counts.items(), key=lambda count: -count[1])
    total = f"goroutine profile: total {len(found)}\n"
    return total + "".join(f"\n{count} @\n{_lines(stack)}" for stack, count in ordered)


def _lines(stack: Stack) -> str:
    return "".join(f"#\t{place}\n" for place in stack)


def _stack(awaited: Any) -> Stack:
    """Return the calls of a coroutine, innermost first: what it awaits, and what that awaits."""
    places: list[Place] = []
    while awaited is not None and len(places) < MOST_CALLS:
        frame = _attribute(awaited, "frame")
        if isinstance(frame, FrameType):
            places.append(Place.of(frame))
        awaited = _attribute(awaited, "await") or _attribute(awaited, "yieldfrom")
    return tuple(reversed(places))


def _attribute(awaited: object, name: str) -> object:
    """Return an attribute of a coroutine, a generator or an asynchronous generator."""
    return next((found for kind in ("cr", "gi", "ag") if (found := getattr(awaited, f"{kind}_{name}", None))), None)
