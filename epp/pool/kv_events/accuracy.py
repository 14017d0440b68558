# SPDX-License-Identifier: Apache-2.0
"""Accuracy of predicted prefix matches, by the cached tokens that engines report with their responses."""

from collections import deque
from collections.abc import Collection, Iterator

from epp.framework import Count, Parameters, Share
from epp.framework.plugin_status import PluginMetric, Sample

_MOST_PATHS = 16
"""Paths of requests that are remembered for each endpoint."""

_TOKENS = PluginMetric(
    "prefix_check_tokens",
    "Cached prompt tokens of responses that were checked: predicted at the pick, and reported by the engine.",
    ("source",),
    is_counter=True,
)
_CHECKED = PluginMetric(
    "prefix_check_responses", "Responses whose prediction was checked, by result.", ("result",), is_counter=True
)
_WRONG_SHARE = PluginMetric(
    "prefix_check_wrong_share", "Share of wrong predictions among the latest ones of all endpoints, 0..1."
)
_DISTRUSTED = PluginMetric("prefix_check_distrusted_endpoints", "Endpoints whose predictions are not used.")
_UNCERTAIN = PluginMetric(
    "prefix_check_uncertain_endpoints", "Endpoints whose blocks are used until a response contradicts them."
)
METRICS = (_TOKENS, _CHECKED, _WRONG_SHARE, _DISTRUSTED, _UNCERTAIN)


class PredictionCheck(Parameters, frozen=True):
    """Comparison of predicted matches with the `cached_tokens` of responses."""

    tolerated_share: Share = 0.1
    """Difference that counts as right, as a share of the prompt's tokens; two blocks always count as right."""
    window: Count = 50
    """Number of the latest checked responses of an endpoint that count."""
    min_responses: Count = 20
    """Least number of checked responses of an endpoint before its predictions can be distrusted. After a gap in its
    events, its blocks are certain again once so many predictions in a row were right."""
    wrong_share: Share = 0.5
    """Share of wrong predictions above which those of an endpoint are not used; 1 to use them always."""
    recovered_share: Share = 0.2
    """Share of wrong predictions below which they are used again."""
    prefix_match_info_producer_name: str = ""
    """Name of the producer instance whose matches replace those of such an endpoint, if configured; empty for the
    default one. Without it, the cache of the endpoint counts as empty."""

    def __post_init__(self) -> None:
        if self.min_responses > self.window:
            raise ValueError(f"minResponses is {self.min_responses}; it must be at most window, {self.window}")
        if self.recovered_share > self.wrong_share:
            raise ValueError(
                f"recoveredShare is {self.recovered_share:g}; it must be at most wrongShare, {self.wrong_share:g}"
            )


class _Record:
    """The latest predictions for one endpoint."""

    __slots__ = ("paths", "wrong")

    def __init__(self, window: int) -> None:
        self.wrong: deque[bool] = deque(maxlen=window)
        self.paths: set[str] = set()
        """Paths of requests whose responses reported cached tokens."""


class Accuracy:
    """Wrong and right predictions by endpoint, which is given by any number."""

    def __init__(self, parameters: PredictionCheck, block_tokens: int) -> None:
        self._given = parameters
        self._block_tokens = block_tokens
        self._records: dict[int, _Record] = {}
        self._distrusted: set[int] = set()
        self._uncertain: dict[int, int] = {}
        """Right predictions that are missing until the blocks of an endpoint are certain again."""
        self._predicted = self._reported = self._right = self._wrong = 0

    @property
    def distrusted(self) -> Collection[int]:
        """Endpoints whose predictions are wrong too often."""
        return self._distrusted

    def forget(self, endpoint: int) -> None:
        """Forget the predictions for an endpoint."""
        self._records.pop(endpoint, None)
        self._distrusted.discard(endpoint)
        self._uncertain.pop(endpoint, None)

    def doubt(self, endpoint: int) -> bool:
        """Make the blocks of an endpoint uncertain; return whether its responses can show that they are wrong.

        They can if the latest ones reported cached tokens that agreed with its predictions.
        """
        record = self._records.get(endpoint)
        if record is None or endpoint in self._distrusted or not record.wrong or record.wrong[-1]:
            return False
        self._uncertain[endpoint] = self._given.min_responses
        return True

    def check(self, endpoint: int, path: str, predicted: int, reported: int | None, prompt_tokens: int) -> bool:
        """Compare the cached tokens of a response; `reported` is None if the response did not say.

        Return whether uncertain blocks of the endpoint are now known to be wrong: fewer were cached than predicted.

        vLLM leaves `cached_tokens` out if it is 0: a response without it counts as 0 if another one of the endpoint, to
        the same path, had it; otherwise it counts for nothing.
        """
        record = self._records.get(endpoint)
        if record is None:
            if reported is None:
                return False
            record = self._records[endpoint] = _Record(self._given.window)
        if reported is None:
            if path not in record.paths:
                return False
            reported = 0
        elif len(record.paths) < _MOST_PATHS:
            record.paths.add(path)
        tolerated = max(2 * self._block_tokens, self._given.tolerated_share * prompt_tokens)
        if max(predicted, reported) <= tolerated:
            return False  # a short match is right by any index
        wrong = abs(predicted - reported) > tolerated
        record.wrong.append(wrong)
        self._predicted += predicted
        self._reported += reported
        self._wrong += wrong
        self._right += not wrong
        share = sum(record.wrong) / len(record.wrong)
        if share > self._given.wrong_share and len(record.wrong) >= self._given.min_responses:
            self._distrusted.add(endpoint)
        elif share < self._given.recovered_share:
            self._distrusted.discard(endpoint)
        return self._is_contradicted(endpoint, wrong=wrong and reported < predicted)

    def _is_contradicted(self, endpoint: int, *, wrong: bool) -> bool:
        left = self._uncertain.pop(endpoint, 0)
        if left and wrong:
            return True
        if left > 1:
            self._uncertain[endpoint] = left - 1
        return False

    @property
    def samples(self) -> Iterator[Sample]:
        """Values of the metrics; read from any thread."""
        latest = [wrong for record in list(self._records.values()) for wrong in tuple(record.wrong)]
        yield Sample(_TOKENS, self._predicted, ("predicted",))
        yield Sample(_TOKENS, self._reported, ("reported",))
        yield Sample(_CHECKED, self._right, ("right",))
        yield Sample(_CHECKED, self._wrong, ("wrong",))
        yield Sample(_WRONG_SHARE, sum(latest) / len(latest) if latest else 0.0)
        yield Sample(_DISTRUSTED, len(self._distrusted))
        yield Sample(_UNCERTAIN, len(self._uncertain))
