# SPDX-License-Identifier: Apache-2.0
"""Errors of plugins in words: the type, the message, and the line of the plugin's own code."""

from collections.abc import Iterator
from pathlib import PurePath
from types import FrameType

from epp.framework.arrays import ResultError

_AROUND = ("epp.framework", "epp.routing.scheduling", "epp.routing.director", "epp.config", "importlib")
"""Code that plugins call, and that calls them: a line in it tells little of the plugin's mistake."""


def described(error: BaseException, owner: type | None = None) -> str:
    """Return `KeyError: 'x' (my_plugins/zones.py:25)`: the last line in the package of `owner`, or else of any.

    What a plugin returned, as opposed to raised, has no line: its message says it all.
    """
    if isinstance(error, ResultError):
        return str(error)
    place = _place(error, owner)
    return f"{type(error).__name__}{f': {error}' if str(error) else ''}{f' ({place})' if place else ''}"


def _place(error: BaseException, owner: type | None) -> str:
    if isinstance(error, SyntaxError) and error.filename:
        return ""  # its message has the place
    frames = [entry for entry in _frames(error) if not _is_around(entry[0])]
    package = "" if owner is None else owner.__module__.partition(".")[0]
    own = [entry for entry in frames if entry[0].partition(".")[0] == package]
    for name, frame, line in (own or frames)[-1:]:
        path = PurePath(frame.f_code.co_filename)
        depth = name.count(".") + (2 if path.stem == "__init__" else 1)
        return f"{'/'.join(path.parts[-depth:])}:{line}"
    return ""


def _frames(error: BaseException) -> Iterator[tuple[str, FrameType, int]]:
    """Yield the module, the frame and the line of each call, the outermost first."""
    trace = error.__traceback__
    while trace is not None:
        yield str(trace.tb_frame.f_globals.get("__name__", "")), trace.tb_frame, trace.tb_lineno
        trace = trace.tb_next


def _is_around(name: str) -> bool:
    return any(name == other or name.startswith(f"{other}.") for other in _AROUND)
