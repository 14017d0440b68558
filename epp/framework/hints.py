# SPDX-License-Identifier: Apache-2.0
"""Suggestions for misspelt names."""

import re
from collections.abc import Iterable
from difflib import get_close_matches

_WORD = re.compile(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])")
_MOST_EDITS = 3
_FEWEST_LETTERS = 3
_MOST_LISTED = 20
_NEAREST = 3


def hint_at(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """Return `did you mean 'x'?` for the known name that is near this one, or else all that are known.

    Of more than 20 known names, only the nearest three are listed; `otherwise` says what to do instead of a list.
    """
    names = sorted(known)
    near = nearest(name, names)
    if near is not None:
        return f"did you mean {near!r}?"
    if otherwise:
        return otherwise
    if len(names) > _MOST_LISTED:
        return f"the nearest of {len(names)} are {', '.join(get_close_matches(name, names, _NEAREST, cutoff=0))}"
    return f"known are {', '.join(names)}" if names else "none are known here"


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that this one is a misspelling of, or the only one that it shortens by some words.

    A misspelling differs in case or separators, or in one letter of four, and three at most.
    """
    names = sorted(known)
    plain = _plain(name)
    allowed = min((len(plain) + 1) // 4, _MOST_EDITS) if len(plain) >= _FEWEST_LETTERS else 0
    distances = {one: _edits(plain, _plain(one), allowed) for one in names}
    best = min(names, key=lambda one: distances[one], default=None)
    if best is not None and distances[best] <= allowed:
        return best
    words = [word.lower() for word in _WORD.findall(name)]
    longer = [one for one in names if len(plain) >= _FEWEST_LETTERS and _in_order(words, one)]
    return longer[0] if len(longer) == 1 else None


def _plain(name: str) -> str:
    return re.sub(r"[-_\s]", "", name).casefold()


def _in_order(words: list[str], name: str) -> bool:
    """Return whether all of the words are words of the name, in that order, from the first one on."""
    of_name = [word.lower() for word in _WORD.findall(name)]
    rest = iter(of_name)
    return words[:1] == of_name[:1] != [] and all(word in rest for word in words)


def _edits(one: str, other: str, limit: int) -> int:
    """Return the number of letters to insert, delete, replace or swap with a neighbour; above the limit, any above it.

    The optimal string alignment distance.
    """
    if abs(len(one) - len(other)) > limit:
        return limit + 1
    before: list[int] = []
    row = list(range(len(other) + 1))
    for i, letter in enumerate(one, 1):
        before, last, row = row, before, [i]
        for j, opposite in enumerate(other, 1):
            least = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (letter != opposite))
            if i > 1 and j > 1 and letter == other[j - 2] and one[i - 2] == opposite:
                least = min(least, last[j - 2] + 1)
            row.append(least)
    return row[-1]
