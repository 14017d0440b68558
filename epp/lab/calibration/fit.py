# SPDX-License-Identifier: Apache-2.0
"""The profile that explains measured times best, and its error on other requests."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from math import ceil
from statistics import median
from typing import NamedTuple

import msgspec
import numpy as np

from epp.lab.sim import FitError, Machine, SimProfile, SimRequest


class Probe(NamedTuple):
    """A request to measure."""

    prompt: tuple[int, ...]
    """Token ids."""
    output_tokens: int


class Answer(NamedTuple):
    """The response; times are in seconds since the batch was sent."""

    prompt_tokens: int
    cached_tokens: int
    token_seconds: tuple[float, ...]
    """When each token arrived."""

    @property
    def seconds_per_token(self) -> float | None:
        """Mean time between two tokens; None for fewer than two."""
        times = self.token_seconds
        return (times[-1] - times[0]) / (len(times) - 1) if len(times) > 1 else None


Batch = Sequence[Answer]
"""Answers to requests that were sent at the same time."""


class NotEnoughError(Exception):
    """Too little was measured for a profile."""


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
            times[emission.request_id].append(emission.at_seconds)
    return [answer._replace(token_seconds=tuple(found)) for answer, found in zip(batch, times, strict=True)]


def fit(profile: SimProfile, prefills: Iterable[Batch], decodes: Iterable[Batch]) -> SimProfile:
    """Return the profile with measured speeds; raises NotEnoughError.

    `prefills` are batches of one request each. `decodes` are batches of equal requests; they also show
    `max_num_seqs`, if some of their requests began only after others had ended.
    """
    by_length: defaultdict[int, list[float]] = defaultdict(list)
    for (answer,) in prefills:
        by_length[answer.prompt_tokens - answer.cached_tokens].append(answer.token_seconds[0])
    by_size: defaultdict[int, list[float]] = defaultdict(list)
    largest = profile.max_num_seqs
    for batch in decodes:
        size, seconds = _step(batch)
        if seconds > 0:
            by_size[size].append(seconds)
        if size < len(batch):
            largest = min(largest, size)
    if len(by_length) < 2 or not by_size:  # noqa: PLR2004  a line has two points
        raise NotEnoughError(
            f"{len(by_length)} lengths of prompts and {len(by_size)} sizes of batches were measured, and a profile "
            "needs 2 and 1: give it a longer --budget"
        )
    per_step, per_token = _line(
        [(ceil(length / profile.max_num_batched_tokens), length) for length in by_length],
        [median(times) for times in by_length.values()],
    )
    alone, further = _line([(1, size - 1) for size in by_size], [median(times) for times in by_size.values()])
    if per_token <= 0 or alone <= 0:
        raise NotEnoughError(
            "times do not grow with the length of prompts, so that no rate can be computed: measure again with a "
            "longer --budget while the server has no other traffic"
        )
    return msgspec.structs.replace(
        profile,
        prefill_tokens_per_second=1 / per_token,
        prefill_step_seconds=per_step,
        seconds_per_output_token=alone,
        batch_slope=further / alone,
        max_num_seqs=largest,
    )


def fit_error(profile: SimProfile, held_out: Sequence[Batch]) -> FitError | None:
    """Return the relative errors of a profile on batches; None without any."""
    first: list[float] = []
    between: list[float] = []
    for batch in held_out:
        for measured, predicted in zip(batch, predict(profile, batch), strict=True):
            first.append(abs(predicted.token_seconds[0] / measured.token_seconds[0] - 1))
            if (seconds := measured.seconds_per_token) and (guess := predicted.seconds_per_token) is not None:
                between.append(abs(guess / seconds - 1))
    if not first or not between:
        return None
    (ttft_median, ttft_p90), (token_median, token_p90) = (np.quantile(each, (0.5, 0.9)) for each in (first, between))
    return FitError(
        requests=len(first),
        ttft_median=float(ttft_median),
        ttft_p90=float(ttft_p90),
        time_per_token_median=float(token_median),
        time_per_token_p90=float(token_p90),
    )


def _step(batch: Batch) -> tuple[int, float]:
    """Return the requests that decoded together, and the median time of a step while all of them did."""
    end = min(answer.token_seconds[-1] for answer in batch)
    together = [answer for answer in batch if answer.token_seconds[0] < end] or batch[:1]
    begin = max(answer.token_seconds[0] for answer in together)
    gaps = []
    for answer in together:
        within = [at for at in answer.token_seconds if begin <= at <= end]
        if len(within) > 1:
            gaps.append((within[-1] - within[0]) / (len(within) - 1))
    return len(together), median(gaps) if gaps else 0.0


def _line(rows: Sequence[tuple[int, int]], times: Sequence[float]) -> tuple[float, float]:
    """Return both factors, 0 or more, with the least squares of the relative errors."""
    y = np.asarray(times, dtype=float)
    x = np.asarray(rows, dtype=float) / y[:, None]
    one = np.ones(len(y))
    first, second = (float(each) for each in np.linalg.lstsq(x, one, rcond=None)[0])
    if first < 0:
        return 0.0, float(np.linalg.lstsq(x[:, 1:], one, rcond=None)[0][0])
    if second < 0:
        return float(np.linalg.lstsq(x[:, :1], one, rcond=None)[0][0]), 0.0
    return first, second
