# SPDX-License-Identifier: Apache-2.0
"""Prefers the endpoint with the shortest expected time to this request's first tokens."""

import numpy as np

from epp.framework import (
    ENDPOINT_RATES,
    IN_FLIGHT,
    IN_FLIGHT_TOKENS,
    KV_USAGE,
    LOAD_INPUTS,
    PREFIX_MATCH,
    PROMPT_TOKENS,
    Candidates,
    Category,
    Floats,
    Natural,
    NonNegative,
    Parameters,
    Request,
    Scorer,
    comparable_load,
)
from epp.framework.accelerators.frozen import WAKE_UP_INPUTS, wake_up_cost
from epp.framework.arrays import read_only
from epp.framework.rates import batch_sizes, uncached_tokens
from epp.framework.scoring import lowest_over

_LEAST_SECONDS, _FULLEST, _ZERO, _ONE = (read_only(np.array(number)) for number in (1e-3, 0.99, 0.0, 1.0))
"""Arrays of no dimension: NumPy works with them at half the cost of floats."""


class WorkSecondsParameters(Parameters, frozen=True):
    """Contributions to the expected time besides prefill."""

    output_tokens: Natural = 16
    """Output tokens to include in the time, or the request's own limit if that is lower: 1 for the time to first token;
    more to give a busy batch more weight against a long prompt."""
    kv_barrier_seconds: NonNegative = 0.05
    """Cost of a half-full KV cache in seconds: the lambda of a barrier that keeps requests from full caches; 0 for no
    barrier."""
    requests_behind: NonNegative = 0.0
    """Least number of requests assumed to wait behind this one: the seconds that its prompt takes count once for
    itself, and once for each of them. With 0, the time of this request alone, it leaves a cache for any shorter
    queue."""
    wake_up_from_memory_seconds: NonNegative = 1.0
    """Time that an idle endpoint takes to wake up whose model is frozen to memory (see `wake-up-scorer`)."""
    wake_up_from_disk_seconds: NonNegative = 20.0
    """The same for a model that is frozen to disk."""
    attention_quadratic_tokens: Natural = 0
    """Prompt length in tokens at which attention takes as long as everything else; 0 to count all tokens alike."""
    prefix_match_info_producer_name: str = ""
    """Name of the producer instance to read prefix matches from; empty for the default one."""


class WorkSecondsScorer(Scorer[WorkSecondsParameters]):
    """`least / seconds`: `seconds = queue + wait + prefill + decode + barrier + wake-up`, `least` those of the best.

    With the endpoint's own rates: `queue = waiting * mean output tokens * ITL / running`, since an engine with a queue
    has no place in its batch until a request ends, nor one that runs as many as it is known to run at once;
    `wait = uncached tokens in flight there / rate`;
    `prefill = (1 + b) * uncached tokens of this prompt / rate`, where `b = requestsBehind * max(1, uncached tokens in
    flight there / prompt tokens)`: as many prompts follow as are there; or, with `attentionQuadraticTokens` q and c of
    p tokens cached, `(1 + b) * (uncached + uncached * (c + p) / q) / rate`;
    `decode = outputTokens * (alpha + beta * batch)`, where `batch` is the number of requests running at the endpoint or
    in flight to it, this one included; `barrier = kvBarrierSeconds * k / (1 - k)`, where `k` is the share of the KV
    cache in use, at most 0.99. A batch or a cache that the endpoint does not report is estimated from requests in
    flight. Twice the time is half the score; times below a millisecond are equal. Without rates, 1 for all.
    """

    plugin_type = "work-seconds-scorer"
    category = Category.BALANCE
    may_read = (PROMPT_TOKENS, KV_USAGE, *LOAD_INPUTS, *WAKE_UP_INPUTS)

    def setup(self) -> None:
        self._match_key = PREFIX_MATCH.produced_by(self.parameters.prefix_match_info_producer_name)
        self.reads = (ENDPOINT_RATES, self._match_key, IN_FLIGHT_TOKENS, IN_FLIGHT)
        self._behind = read_only(np.array(self.parameters.requests_behind))
        self._barrier_seconds = read_only(np.array(self.parameters.kv_barrier_seconds))

    def score(self, request: Request, candidates: Candidates) -> Floats:
        seconds = self.seconds(request, candidates)
        if seconds is None:
            return np.ones(len(candidates))
        return lowest_over(np.maximum(seconds, _LEAST_SECONDS))

    def seconds(self, request: Request, candidates: Candidates) -> Floats | None:
        """Return the expected seconds at each candidate; None without rates."""
        rates = request.get(ENDPOINT_RATES)
        if rates is None:
            return None
        wanted = request.body.max_output_tokens
        output = self.parameters.output_tokens if wanted is None else min(self.parameters.output_tokens, wanted)
        uncached = uncached_tokens(request, candidates, request.get(self._match_key))
        own = uncached
        if self.parameters.attention_quadratic_tokens:
            seen = 2 * request.prompt_tokens - uncached
            own = uncached + uncached * seen / self.parameters.attention_quadratic_tokens
        if self.parameters.requests_behind:
            prompts = candidates.values(IN_FLIGHT_TOKENS) / max(request.prompt_tokens, 1)
            own = own * (_ONE + self._behind * np.maximum(prompts, _ONE))
        ttft = rates.ttft_seconds(candidates, own)
        decode = output * rates.itl_seconds(candidates, batch_sizes(candidates) + _ONE)
        return ttft + decode + self._barrier(comparable_load(candidates, KV_USAGE)) + self._wake_up(candidates)

    def _wake_up(self, candidates: Candidates) -> Floats:
        given = self.parameters
        return wake_up_cost(candidates, given.wake_up_from_memory_seconds, given.wake_up_from_disk_seconds)

    def _barrier(self, kv_usage: Floats) -> Floats:
        usage = np.minimum(np.maximum(kv_usage, _ZERO), _FULLEST)
        barrier: Floats = self._barrier_seconds * usage / (_ONE - usage)
        return barrier
