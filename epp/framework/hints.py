# SPDX-License-Identifier: Apache-2.0
"""Suggestions for misspelt names."""

import difflib
from collections.abc import Iterable


def hint_at(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """Return `did you mean 'x'?` for the known name most like this one, or else all that are known.

    Where those are too many to read, `otherwise` says what to do instead.
    """
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    if near:
        return f"did you mean {near[0]!r}?"
    if otherwise:
        return otherwise
    return f"known are {', '.join(names)}" if names else "none are known here"
