# SPDX-License-Identifier: Apache-2.0
"""Header names in all spellings that some server takes for one and the same.

CGI, and what has its names from there (WSGI, Rack, PHP), knows but letters, digits and `_`: `x_a.b` arrives there as
`x-a-b` does. Some proxies turn `_` into `-`.
"""

import re
from collections.abc import Collection, Iterable

_MOST_SEARCHED = 4096
_SEPARATOR = "[^a-z0-9\n]"
_NOT_IN_WORDS = re.compile("[^a-z0-9]")


class Spellings:
    """Some names, and beginnings of names, whatever stands between their words."""

    __slots__ = ("_search", "beginnings", "has", "names")

    def __init__(self, names: Iterable[str] = (), beginnings: Iterable[str] = ()) -> None:
        """Take lower-case names, and `beginnings` as prefixes of further names."""
        self.names = frozenset(names)
        self.beginnings = frozenset(beginnings)
        spelled = [_spelled(name) for name in sorted(self.names)]
        begun = [_spelled(beginning) for beginning in sorted(self.beginnings)]
        self._search = re.compile("|".join((*begun, *spelled)) or "(?!)").search
        """Faster than one that knows where names begin and end."""
        self.has = re.compile("|".join((*(f"{each}.*" for each in begun), *spelled)) or "(?!)", re.DOTALL).fullmatch
        """Tell whether a lower-case name is one of them."""

    def among(self, names: Collection[str]) -> list[str]:
        """Return those of the lower-case names that are: usually none is, which one search tells sooner than a loop.

        Of many or long names the search may take long, as clients choose them; the loop does not.
        """
        text = "\n".join(names)
        if len(text) <= _MOST_SEARCHED and self._search(text) is None:
            return []
        has = self.has
        return [name for name in names if has(name)]

    def beside(self, names: Iterable[str]) -> "Spellings":
        """Return these and some more."""
        return Spellings(self.names.union(names), self.beginnings)


def _spelled(name: str) -> str:
    return _SEPARATOR.join(map(re.escape, _NOT_IN_WORDS.split(name)))
