# SPDX-License-Identifier: Apache-2.0
"""Prefer the endpoint with the shortest expected time to this request's first tokens."""

from typing import Annotated, NamedTuple

import numpy as np

from epp.framework import (
    ACCELERATOR_SELECTION,
    ENDPOINT_RATES,
    FETCH_SECONDS,
    IN_FLIGHT,
    IN_FLIGHT_TOKENS,
    KV_USAGE,
    LOAD_AT,
    LOAD_INPUTS,
    LORA,
    PREFIX_MATCH,
    PROMPT_TOKENS,
    PULLED_TOKENS,
    Candidates,
    Category,
    Floats,
    LoraState,
    Natural,
    NonNegative,
    Parameters,
    Positions,
    Request,
    Scorer,
    Share,
    Snapshot,
    Tunable,
    comparable_load,
)
from epp.framework.accelerators.arrays import WAKE_UP_INPUTS, WakeUpCost
from epp.framework.accelerators.selection import SERVED_CLASS, of_served_class
from epp.framework.arrays import highest, read_only
from epp.framework.clusters import CLUSTER, NetworkSeconds
from epp.framework.expected_times import EndpointRates, Reported, batch_sizes, uncached_tokens
from epp.framework.load import is_known
from epp.framework.scoring import lowest_over
from epp.framework.snapshot import ROUND_TRIP, adapters_in_use

_LEAST_SECONDS, _FULLEST, _ZERO, _ONE = (read_only(np.array(number)) for number in (1e-3, 0.99, 0.0, 1.0))
"""Arrays of dimension 0, which NumPy processes at half the cost of floats."""
_MOST_ADAPTERS = 10_000
_ALONE = read_only(np.ones(1))
"""Score of the only candidate."""


class _Barrier(NamedTuple):
    """Cost of the KV cache in use, one number for each slot or candidate."""

    seconds: Floats
    """NaN if the usage is not reported."""
    is_known: bool = False
    """Whether all endpoints report their usage."""

    def at(self, slots: Positions) -> "_Barrier":
        seconds = self.seconds[slots]
        return _Barrier(seconds, is_known(seconds))


def _load_count(state: LoraState, adapter: str) -> float:
    """Return the number of adapter loads that a request causes: its adapter, and later the one that it evicts.

    The first request that waits for an adapter loads it for all.
    """
    if adapter in state.running or adapter in state.waiting or adapter in state.loaded:
        return 0.0
    return 1.0 if len(state.loaded) < state.max_adapters else 2.0


def _slot_waits(state: LoraState, adapter: str) -> float:
    """Return the number of slots that must become free first; half of it if the adapter already waits."""
    others = (state.running | state.waiting) - {adapter}
    if adapter in state.running or len(others) < state.max_adapters:
        return 0.0
    turns = 1.0 + len(others - state.running)
    return turns / 2 if adapter in state.waiting else turns


def _running_count(state: LoraState) -> float:
    return max(1.0, len(state.running))


class WorkSecondsParameters(Parameters, frozen=True):
    """Contributions to the expected time in addition to prefill."""

    output_tokens: Annotated[Natural, Tunable(1, 256, log=True)] = 16
    """Output tokens to include in the time, or the request's own limit if that is lower: 1 for the time to first token;
    more to give a busy batch more weight against a long prompt."""
    kv_barrier_seconds: Annotated[NonNegative, Tunable(0.001, 1, log=True)] = 0.05
    """Cost of a half-full KV cache in seconds, the lambda of a barrier against full caches; 0 for none."""
    requests_behind: Annotated[NonNegative, Tunable(0, 4)] = 0.0
    """Minimum number of requests assumed to wait behind this one; the time of its prompt counts once more for each.
    With 0, only the time of this request counts, which favours short queues over cached prefixes."""
    delay_weight: Annotated[NonNegative, Tunable(0, 1)] = 0.0
    """Weight of the delay of the other requests in the batch: an engine that computes a prompt generates their tokens
    more slowly. 1 to weigh it like the time of this request; 0 to ignore it."""
    evicted_prefix_weight: Annotated[Share, Tunable(0, 1)] = 0.0
    """Share of evicted tokens that count as cached at the endpoint that computed the conversation last, while all KV
    caches are full; less if a candidate has room. A conversation that moves to a full cache evicts blocks that others
    would use, so it is better to recompute it at its endpoint. 0 to count all evicted tokens as uncached."""
    adapter_load_seconds: NonNegative = 0.0
    """Time to load a LoRA adapter; 0 to ignore adapters."""
    class_stickiness_seconds: NonNegative = 0.0
    """Time added at endpoints of other accelerator classes than the one that served the session before, by
    `served-class-producer`, so that the responses of a session keep their pace. A selection with
    `classStickinessSeconds` takes precedence. 0 for no preference."""
    wake_up_from_memory_seconds: NonNegative = 1.0
    """Time to wake up an idle endpoint whose model is frozen to memory (see `wake-up-scorer`)."""
    wake_up_from_disk_seconds: NonNegative = 20.0
    """Time to wake up an idle endpoint whose model is frozen to disk."""
    network_round_trips: NonNegative = 1.0
    """Round trips of a request to the cluster of the endpoint, 1 on a kept-alive connection; 0 to ignore them."""
    attention_quadratic_tokens: Natural = 0
    """Prompt length in tokens at which attention takes as long as everything else; 0 to count all tokens alike."""
    prefix_match_info_producer_name: str = ""
    """Name of the producer instance to read prefix matches from; empty for the default one."""


class WorkSecondsScorer(Scorer[WorkSecondsParameters]):
    """`least / seconds`: the lowest time among the candidates divided by that of the endpoint.

    `seconds = queue + wait + prefill + fetch + delay + adapter + decode + barrier + wake-up + network + other class`,
    with the endpoint's own rates:

    - `queue = waiting * mean output tokens * ITL / running` if the engine has a queue or a full batch, because a place
      in the batch becomes free only when a request ends;
    - `wait = uncached tokens in flight there / rate`;
    - `prefill = (1 + b) * uncached tokens of this prompt / rate`, where `b = requestsBehind * max(1, uncached tokens in
      flight there / prompt tokens)` is the number of prompts expected to follow; or, with `attentionQuadraticTokens` q
      and c of p tokens cached, `(1 + b) * (uncached + uncached * (c + p) / q) / rate`. At the endpoint that computed
      the conversation last, a share of the tokens that it has evicted since counts as cached: `evictedPrefixWeight`
      times the least KV cache usage of the candidates;
    - `fetch` is the time to bring cached blocks from lower tiers, or from other endpoints, to the accelerator, by
      `kv-transfer-cost`; tokens that are copied are not uncached;
    - `delay = delayWeight * n * uncached tokens of this prompt / rate`, where `n` is the number of requests running at
      the endpoint or in flight to it, which all wait while the prompt is computed;
    - `adapter` is the sum of loading and waiting. Loading is `(1 + delayWeight * n) * adapterLoadSeconds` if the
      request's LoRA adapter is not loaded and no request waits for it, and twice that if the loaded adapters fill all
      slots: the evicted adapter must be loaded again. The adapters that ran last count as loaded, up to the number of
      slots. Waiting is `(1 + w) * mean output tokens * ITL * (1 + ln(1 + n / r))` if no slot is free, where `r`
      adapters run and `w` others wait: `1 + w` of the running ones must end first. Each has `n / r` requests, and the
      logarithm is how much later the last of them ends than a single one (the mean maximum of exponential times). It is
      half of that if requests wait for the adapter already;
    - `decode = outputTokens * (alpha + beta * batch)`, where `batch` is the number of requests running at the endpoint
      or in flight to it, including this one;
    - `barrier = kvBarrierSeconds * k / (1 - k)`, where `k` is the share of the KV cache in use, at most 0.99;
    - `network = networkRoundTrips * round trip` to another cluster: as `cluster-data-source` declares it, or else the
      shortest time in which polls connect to an endpoint of that cluster; 0 if it is unknown;
    - `other class = classStickinessSeconds` if another accelerator class served the request's session before.

    A batch or KV cache usage that the endpoint does not report is estimated from requests in flight. If a report has
    not changed for `age` seconds, requests beyond those in flight count with the weight `1 / (1 + O * (age / S)^2)`,
    where O is their number at all candidates and S the seconds that each takes: with old reports, only requests in
    flight count. Times below a millisecond count as a millisecond. Without rates, all get 1.
    """

    plugin_type = "work-seconds-scorer"
    category = Category.BALANCE
    zero_means = "takes far longer than the best one"
    may_read = (
        PROMPT_TOKENS,
        KV_USAGE,
        LORA,
        FETCH_SECONDS,
        PULLED_TOKENS,
        LOAD_AT,
        CLUSTER,
        ROUND_TRIP,
        ACCELERATOR_SELECTION,
        SERVED_CLASS,
        *LOAD_INPUTS,
        *WAKE_UP_INPUTS,
    )

    def setup(self) -> None:
        given = self.parameters
        self._match_key = PREFIX_MATCH.produced_by(given.prefix_match_info_producer_name)
        self.reads = (ENDPOINT_RATES, self._match_key, IN_FLIGHT_TOKENS, IN_FLIGHT)
        if given.class_stickiness_seconds:
            self.reads += (SERVED_CLASS,)
        numbers = (given.requests_behind, given.kv_barrier_seconds, given.output_tokens, given.delay_weight)
        self._behind, self._barrier_seconds, self._output, self._delay_weight = (
            read_only(np.array(float(number))) for number in numbers
        )
        self._reported: Reported[_Barrier] = Reported(KV_USAGE)
        self._wake_up = WakeUpCost(given.wake_up_from_memory_seconds, given.wake_up_from_disk_seconds)
        self._network = NetworkSeconds()
        self._seen_adapters: set[str] = set()
        """Names that endpoints have reported as adapters."""

    def score(self, request: Request, candidates: Candidates) -> Floats:
        if len(candidates) == 1:
            return _ALONE
        seconds = self.seconds(request, candidates)
        if seconds is None:
            return np.ones(len(candidates))
        return lowest_over(np.maximum(seconds, _LEAST_SECONDS, out=seconds))

    def seconds(self, request: Request, candidates: Candidates) -> Floats | None:
        """Return the expected seconds at each candidate; None without rates."""
        given = self.parameters
        rates, waking_up = request.get(ENDPOINT_RATES), self._wake_up.of(candidates)
        if rates is None:
            return None
        candidates = rates.weighed_by_age(candidates)
        ahead = candidates.values(IN_FLIGHT_TOKENS)
        tokens = self._own_tokens(request, candidates, ahead)
        tokens += ahead
        seconds = rates.seconds(candidates, tokens, self._output_tokens(request))
        seconds += self._barrier(candidates)
        if given.adapter_load_seconds and self._is_adapter(request.model, candidates):
            seconds += self._adapter_seconds(request.model, rates, candidates)
        if (same := of_served_class(request, candidates)) is not None:
            seconds += np.where(same, _ZERO, self._stickiness(request, candidates))
        fetching = request.get(FETCH_SECONDS)
        if fetching is not None:
            seconds += fetching[candidates.slots]
        network = self._network.of(candidates.snapshot) if given.network_round_trips else None
        if network is not None:
            seconds += given.network_round_trips * np.nan_to_num(network[candidates.slots])
        return seconds if waking_up is None else seconds + waking_up

    def _own_tokens(self, request: Request, candidates: Candidates, ahead: Floats) -> Floats:
        """Return the tokens of this prompt and of the prompts assumed to follow; `ahead` are the tokens in flight."""
        prompt_tokens, given = request.prompt_tokens, self.parameters
        match = request.get(self._match_key)
        uncached = uncached_tokens(request, candidates, match)
        pulled = request.get(PULLED_TOKENS)
        if pulled is not None:
            np.maximum(uncached - pulled[candidates.slots], 0.0, out=uncached)
        if not len(uncached):
            return uncached
        if given.evicted_prefix_weight and match is not None and 0 <= match.last_slot < len(match.matched_blocks):
            evicted = match.last_tokens - match.tokens_at(match.last_slot)
            if evicted > 0:
                usage = min(max(comparable_load(candidates, KV_USAGE).min(), 0.0), 1.0)
                uncached[candidates.slots == match.last_slot] -= given.evicted_prefix_weight * usage * evicted
                np.maximum(uncached, _ZERO, out=uncached)
        own = uncached
        if given.attention_quadratic_tokens:
            own = uncached + uncached * (2 * prompt_tokens - uncached) / given.attention_quadratic_tokens
        prompts = self._behind
        if given.requests_behind and highest(ahead) > prompt_tokens:  # more than one prompt is in flight somewhere
            prompts = ahead / np.array(float(max(prompt_tokens, 1)))
            np.maximum(prompts, _ONE, out=prompts)
            prompts *= self._behind
        if given.delay_weight:
            prompts = prompts + self._delay_weight * batch_sizes(candidates)
        own *= prompts + _ONE
        return own

    def _stickiness(self, request: Request, candidates: Candidates) -> float:
        selections = request.get(ACCELERATOR_SELECTION)
        own = 0.0 if selections is None else selections.of(candidates.profile).class_stickiness_seconds
        return own or self.parameters.class_stickiness_seconds

    def _is_adapter(self, model: str, candidates: Candidates) -> bool:
        """Return whether an endpoint has reported it as an adapter; engines report only those in use."""
        names = candidates.snapshot.records(LORA).derive(adapters_in_use)
        if names and model in names and model not in self._seen_adapters:
            if len(self._seen_adapters) >= _MOST_ADAPTERS:
                self._seen_adapters.clear()
            self._seen_adapters.add(model)
        return model in self._seen_adapters

    def _adapter_seconds(self, model: str, rates: EndpointRates, candidates: Candidates) -> Floats:
        given, slots, batch = self.parameters, candidates.slots, batch_sizes(candidates)
        states = candidates.snapshot.records(LORA)
        seconds: Floats = states.derive_numbers(_load_count, model)[slots] * given.adapter_load_seconds
        seconds *= _ONE + given.delay_weight * batch
        requests = batch / states.derive_numbers(_running_count)[slots]
        turn_seconds = rates.output_tokens * rates.itl_seconds(candidates, batch) * (_ONE + np.log1p(requests))
        seconds += states.derive_numbers(_slot_waits, model)[slots] * turn_seconds
        return seconds

    def _output_tokens(self, request: Request) -> int | Floats:
        wanted = request.body.max_output_tokens
        return self._output if wanted is None or wanted >= self.parameters.output_tokens else wanted

    def _barrier(self, candidates: Candidates) -> Floats:
        """Return the cost of the KV cache in use, estimated if it is not reported."""
        barrier = self._reported.of(candidates, self._reported_barrier)
        if barrier is not None and barrier.is_known:
            return barrier.seconds
        return self._barrier_of(comparable_load(candidates, KV_USAGE))

    def _reported_barrier(self, snapshot: Snapshot) -> _Barrier:
        return _Barrier(self._barrier_of(snapshot.column(KV_USAGE)))

    def _barrier_of(self, kv_usage: Floats) -> Floats:
        usage = np.minimum(np.maximum(kv_usage, _ZERO), _FULLEST)
        barrier: Floats = self._barrier_seconds * usage / (_ONE - usage)
        return barrier
