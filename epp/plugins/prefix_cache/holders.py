# SPDX-License-Identifier: Apache-2.0
"""Sets of small numbers, each kept once, as one code of 32 bits."""


class Holders:
    """Sets of lanes by code: a single lane is its own code, a larger set has a negative one.

    A code is in use as often as it was returned and not given to another method since.
    """

    __slots__ = ("_codes", "_free", "_masks", "_uses")

    def __init__(self) -> None:
        self._masks: list[int] = []
        self._uses: list[int] = []
        self._codes: dict[int, int] = {}
        self._free: list[int] = []

    def mask(self, code: int) -> int:
        """Return a set as bits."""
        return 1 << code if code >= 0 else self._masks[~code]

    def again(self, code: int) -> int:
        """Return the same code for one more use."""
        if code < 0:
            self._uses[~code] += 1
        return code

    def plus(self, code: int, lane: int) -> int:
        """Return the code of the set with a lane that it lacks."""
        return self._replaced(code, self.mask(code) | 1 << lane)

    def minus(self, code: int, lane: int) -> int:
        """Return the code of the set without a lane, not the only one in it."""
        return self._replaced(code, self.mask(code) ^ 1 << lane)

    def _replaced(self, code: int, mask: int) -> int:
        other = self._code_of(mask)
        if code < 0:
            self._uses[~code] -= 1
            if not self._uses[~code]:
                del self._codes[self._masks[~code]]
                self._masks[~code] = 0
                self._free.append(~code)
        return other

    def _code_of(self, mask: int) -> int:
        if not mask & (mask - 1):
            return mask.bit_length() - 1
        code = self._codes.get(mask)
        if code is not None:
            self._uses[~code] += 1
            return code
        if self._free:
            number = self._free.pop()
            self._masks[number], self._uses[number] = mask, 1
        else:
            number = len(self._masks)
            self._masks.append(mask)
            self._uses.append(1)
        self._codes[mask] = ~number
        return ~number
