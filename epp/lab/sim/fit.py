# SPDX-License-Identifier: Apache-2.0
"""Fit of a profile to measured times, and its error on held-out requests."""

from collections import defaultdict
from collections.abc import Sequence
from itertools import chain, combinations, pairwise
from math import ceil, inf
from statistics import median
from typing import NamedTuple

import msgspec
import numpy as np

from epp.lab.sim.machine import Machine
from epp.lab.sim.profile import FitError, SimProfile
from epp.lab.sim.work import SimRequest

_LEAST_GAIN = 0.1
_ROUNDING = 1e-9


class Probe(NamedTuple):
    """Request to measure."""

    prompt: tuple[int, ...]
    """Token ids."""
    output_tokens: int


class Answer(NamedTuple):
    """The response; times are in seconds since the batch was sent."""

    prompt_tokens: int
    cached_tokens: int
    token_seconds: tuple[float, ...]
    """Arrival time of each token."""

    @property
    def seconds_per_token(self) -> float | None:
        """Mean time between two tokens; None for fewer than two."""
        times = self.token_seconds
        return (times[-1] - times[0]) / (len(times) - 1) if len(times) > 1 else None


Batch = Sequence[Answer]
"""Answers to requests that were sent at the same time."""


class NotEnoughError(Exception):
    """There are too few measurements for a profile."""


def predict(profile: SimProfile, batch: Batch) -> list[Answer]:
    """Return the answers of a simulated machine to the same requests, in virtual time."""
    machine = Machine(profile)
    for number, answer in enumerate(batch):
        machine.submit(
            SimRequest(
                request_id=number,
                prompt_tokens=answer.prompt_tokens,
                output_tokens=len(answer.token_seconds),
                transferred_tokens=answer.cached_tokens,
            )
        )
    times: list[list[float]] = [[] for _ in batch]
    while (due := machine.next_event_at) is not None:
        for emission in machine.advance(due):
            times[emission.request_id].append(emission.at_seconds + profile.overhead_seconds)
    return [answer._replace(token_seconds=tuple(found)) for answer, found in zip(batch, times, strict=True)]


def fit(profile: SimProfile, prefills: Sequence[Batch], decodes: Sequence[Batch]) -> SimProfile:
    """Return the profile with measured speeds; raises NotEnoughError.

    `prefills` are batches of one request each. `decodes` are batches of equal requests; they also separate the overhead
    of a request from that of a step, and give `max_num_seqs` if some requests began only after others had ended.
    """
    by_size: defaultdict[int, list[float]] = defaultdict(list)
    largest = profile.max_num_seqs
    for batch in decodes:
        size, seconds = _step(batch)
        if seconds > 0:
            by_size[size].append(seconds)
        if size < len(batch):
            largest = min(largest, size)
    lengths = {_uncached(answer) for (answer,) in prefills}
    if len(lengths) < 2 or not by_size:  # noqa: PLR2004  a line needs two points
        raise NotEnoughError(
            f"{len(lengths)} lengths of prompts and {len(by_size)} sizes of batches were measured, and a profile "
            "needs 2 and 1: use a longer --budget"
        )
    alone, further = _factors([(1, size - 1) for size in by_size], [median(times) for times in by_size.values()])
    by_work: defaultdict[tuple[float, ...], list[float]] = defaultdict(list)
    for batch in (*prefills, *(batch for batch in decodes if len(batch) > 1)):
        work, seconds = _prefill(batch, alone, profile.max_num_batched_tokens)
        by_work[work].append(seconds)
    per_token, per_step, per_request, per_pair = _factors(list(by_work), [median(times) for times in by_work.values()])
    if per_token <= 0 or alone <= 0:
        raise NotEnoughError(
            "times do not grow with the length of prompts, so no rate can be computed: measure again with a "
            "longer --budget while the server has no other traffic"
        )
    return msgspec.structs.replace(
        profile,
        prefill_tokens_per_second=1 / per_token,
        prefill_step_seconds=per_step,
        attention_tokens=per_token / per_pair if per_pair else 0.0,
        request_overhead_seconds=per_request,
        seconds_per_output_token=alone,
        batch_slope=further / alone,
        max_num_seqs=largest,
    )


def fit_error(profile: SimProfile, held_out: Sequence[Batch]) -> FitError | None:
    """Return the relative errors of a profile on batches; None without batches."""
    first: list[float] = []
    between: list[float] = []
    for batch in held_out:
        for measured, predicted in zip(batch, predict(profile, batch), strict=True):
            first.append(abs(predicted.token_seconds[0] / measured.token_seconds[0] - 1))
            if (seconds := measured.seconds_per_token) and (guess := predicted.seconds_per_token) is not None:
                between.append(abs(guess / seconds - 1))
    if not first or not between:
        return None
    (ttft, ttft_p90), (token, token_p90) = (np.quantile(each, (0.5, 0.9)).tolist() for each in (first, between))
    return FitError(
        requests=len(first),
        ttft_median=ttft,
        ttft_p90=ttft_p90,
        time_per_token_median=token,
        time_per_token_p90=token_p90,
    )


def spread(prefills: Sequence[Batch]) -> tuple[float, float] | None:
    """Return the median and the p90 of relative deviations of equal requests from their median; None if unknown."""
    by_length: defaultdict[int, list[float]] = defaultdict(list)
    for (answer,) in prefills:
        by_length[_uncached(answer)].append(answer.token_seconds[0])
    found = [abs(time / median(times) - 1) for times in by_length.values() if len(times) > 2 for time in times]  # noqa: PLR2004
    return (float(np.quantile(found, 0.5)), float(np.quantile(found, 0.9))) if found else None


def _uncached(answer: Answer) -> int:
    return answer.prompt_tokens - answer.cached_tokens


def _together(batch: Batch) -> Batch:
    """Return the answers that began before the first one ended."""
    end = min(answer.token_seconds[-1] for answer in batch)
    return [answer for answer in batch if answer.token_seconds[0] < end] or batch[:1]


def _step(batch: Batch) -> tuple[int, float]:
    """Return the number of requests that decoded together, and the median time of their steps."""
    together = _together(batch)
    begin = max(answer.token_seconds[0] for answer in together)
    end = min(answer.token_seconds[-1] for answer in together)
    gaps = []
    for answer in together:
        within = [at for at in answer.token_seconds if begin <= at <= end]
        if len(within) > 1:
            gaps.append((within[-1] - within[0]) / (len(within) - 1))
    return len(together), median(gaps) if gaps else 0.0


def _prefill(batch: Batch, decode_seconds: float, step_tokens: int) -> tuple[tuple[float, ...], float]:
    """Return the work until the last first token (tokens, steps, requests, pairs of tokens) and its seconds.

    First tokens more than half a decode step apart belong to different steps; earlier requests decode in later steps.
    """
    together = _together(batch)
    firsts = sorted(answer.token_seconds[0] for answer in together)
    further = sum(after - before > decode_seconds / 2 for before, after in pairwise(firsts))
    tokens = sum(map(_uncached, together))
    pairs = sum(_uncached(answer) * (answer.cached_tokens + _uncached(answer) / 2) for answer in together)
    steps = max(1 + further, ceil(tokens / step_tokens))
    return (tokens, steps, 1, pairs), firsts[-1] - further * decode_seconds


def _factors(rows: Sequence[tuple[float, ...]], times: Sequence[float]) -> tuple[float, ...]:
    """Return the factors of the columns, 0 or more, with the least squares of relative errors.

    A further column is used if it reduces the sum of squares by a tenth; the first columns are preferred.
    """
    y = np.asarray(times, dtype=float)
    x = np.asarray(rows, dtype=float) / y[:, None]
    columns = range(x.shape[1])
    best, least = np.zeros(len(columns)), inf
    for chosen in chain.from_iterable(combinations(columns, count + 1) for count in columns):
        found, _, rank, _ = np.linalg.lstsq(x[:, chosen], np.ones(len(y)), rcond=None)
        error = float(np.sum((x[:, chosen] @ found - 1) ** 2))
        if rank == len(chosen) and found.min() >= 0 and error < (1 - _LEAST_GAIN) * least - _ROUNDING:
            least, best = error, np.zeros(len(columns))
            best[list(chosen)] = found
    return tuple(best.tolist())
