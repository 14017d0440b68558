"""Prefers, and keeps where asked to, endpoints that are meant for prompts of the request's length."""

import re
from math import nan

import numpy as np

from epp.framework import Candidates, Category, Endpoint, Filter, FilterParameters, Floats, Mask, Request, Scorer
from epp.framework.limits import Name
from epp.framework.request import PROMPT_TOKENS

UNLABELLED_SCORE = 0.5
_RANGE = re.compile("([0-9]{1,15})-([0-9]{1,15})")


class ContextLengthAwareParameters(FilterParameters, frozen=True):
    """Where endpoints say what they are meant for, and whether that binds."""

    label: Name = "llm-d.ai/context-length-range"
    """The label that holds the range, `min-max` in tokens, both ends included."""
    enable_filtering: bool = False
    """Also drop the endpoints whose range the request is not in."""


class ContextLengthAware(Filter[ContextLengthAwareParameters], Scorer[ContextLengthAwareParameters]):
    """Scores an endpoint by its range of prompt lengths; a request's length is its prompt's tokens, without output.

    In the range: `0.3 + 0.7 * (0.7 / (1 + width / 10000) + 0.3 * headroom / width)`, where `headroom` is `max` less
    the prompt's tokens (nothing for a range of width 0): a narrow range beats a wide one. Out of it: `0.3 / (1 +
    distance / 1000)`, where `distance` is the tokens between prompt and range. 0.5 without the label, or where it is
    not `min-max` with `min <= max`. With `enableFiltering` the endpoints whose range the request is not in are dropped,
    and those without a range kept; without it, all are kept.
    """

    plugin_type = "context-length-aware"
    category = Category.AFFINITY
    may_read = (PROMPT_TOKENS,)

    def setup(self) -> None:
        self.may_empty = self.parameters.enable_filtering

    def filter(self, request: Request, candidates: Candidates) -> Mask:
        if not self.parameters.enable_filtering:
            return np.ones(len(candidates), dtype=np.bool_)
        low, high = self._ranges(candidates)
        outside: Mask = (request.prompt_tokens < low) | (request.prompt_tokens > high)
        return ~outside

    def score(self, request: Request, candidates: Candidates) -> Floats:
        tokens = request.prompt_tokens
        low, high = self._ranges(candidates)
        width = high - low
        headroom = np.divide(high - tokens, width, out=np.zeros(len(width)), where=width > 0)
        distance = np.maximum(0.0, np.maximum(low - tokens, tokens - high))
        inside = 0.3 + 0.7 * (0.7 / (1.0 + width / 10000.0) + 0.3 * headroom)
        outside = 0.3 / (1.0 + distance / 1000.0)
        return np.where(np.isnan(low), UNLABELLED_SCORE, np.where(distance == 0.0, inside, outside))

    def _ranges(self, candidates: Candidates) -> Floats:
        """Return two rows, the least and the most tokens of each candidate's range; NaN where it has none."""
        return candidates.snapshot.endpoints.derive(_labelled_ranges, self.parameters.label)[:, candidates.slots]


def _labelled_ranges(endpoints: tuple[Endpoint | None, ...], label: str) -> Floats:
    return np.array([_range("" if e is None else e.labels.get(label, "")) for e in endpoints], dtype=np.float64).T


def _range(text: str) -> tuple[float, float]:
    found = _RANGE.fullmatch(text)
    if found is None or int(found[1]) > int(found[2]):
        return nan, nan
    return float(found[1]), float(found[2])
