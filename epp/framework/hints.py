"""A hint at what somebody who wrote an unknown name probably meant."""

import difflib
from collections.abc import Iterable


def hint_at(name: str, known: Iterable[str]) -> str:
    """Return `did you mean 'x'?` for the known name most like this one, or else all that are known."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    if near:
        return f"did you mean {near[0]!r}?"
    return f"known are {', '.join(names)}" if names else "none are known here"
