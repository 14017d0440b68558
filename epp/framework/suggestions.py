# SPDX-License-Identifier: Apache-2.0
"""Suggestions for misspelt names: "did you mean"."""

import re
from collections.abc import Iterable
from difflib import get_close_matches

_WORD = re.compile(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])")
_MOST_EDITS = 3
_FEWEST_LETTERS = 3
_MOST_LISTED = 20
_NEAREST = 3


def hint_at(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """Return `did you mean 'x'?` if a known name is similar to this one; otherwise list the known names.

    If more than 20 names are known, only the three most similar ones are listed; `otherwise` replaces the list.
    """
    names = sorted(known)
    near = nearest(name, names)
    if near is not None:
        return f"did you mean {near!r}?"
    if otherwise:
        return otherwise
    if len(names) > _MOST_LISTED:
        return f"the nearest of {len(names)} are {', '.join(get_close_matches(name, names, _NEAREST, cutoff=0))}"
    return f"known are {', '.join(names)}" if names else "there are none"


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name of which this one is a misspelling, or the only one of which it is an abbreviation.

    A misspelling differs in case, in separators, or in at most one letter of four and three letters altogether. An
    abbreviation omits words.
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
    """Return whether the name consists of these words in this order and other words, and starts with the first one."""
    of_name = [word.lower() for word in _WORD.findall(name)]
    rest = iter(of_name)
    return words[:1] == of_name[:1] != [] and all(word in rest for word in words)


def _edits(one: str, other: str, limit: int) -> int:
    """Return the optimal string alignment distance; for a distance above the limit, any number above it.

    This is the number of letters to insert, delete, replace or swap with a neighbour.
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
