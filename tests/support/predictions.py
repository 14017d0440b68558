# SPDX-License-Identifier: Apache-2.0
"""Predicted latencies of requests, made from numbers in milliseconds."""

from collections.abc import Sequence

import numpy as np

from epp.framework import LATENCY_PREDICTION, Headers, LatencyPrediction, Request

UNKNOWN = (np.nan, np.nan)


def prediction(
    headrooms: Sequence[tuple[float, float]],
    *,
    times: Sequence[tuple[float, float]] = (),
    dispatched: Sequence[float] = (),
) -> LatencyPrediction:
    """Return the prediction with these headrooms to both targets, for slots 0, 1, 2 ...; UNKNOWN for none."""
    first, further = np.array(headrooms, dtype=np.float64).T / 1e3
    ttft, tpot = np.array(times).T / 1e3 if times else (first * 0.0, further * 0.0)
    count = np.array(dispatched or [1.0] * len(headrooms))
    sure, samples = np.zeros(len(count), dtype=np.bool_), np.zeros(len(count))
    valid = (first > 0) & (further > 0)
    return LatencyPrediction("rates", ttft, tpot, ttft * 2, tpot * 2, sure, samples, first, further, valid, count)


def predicted(found: LatencyPrediction | None, *, priority: int = 0, seed: int = 0, **headers: str) -> Request:
    """Return a request with this prediction; `ttft_ms="100"` is a target."""
    names = {"ttft_ms": "x-llm-d-slo-ttft-ms", "tpot_ms": "x-llm-d-slo-tpot-ms"}
    fields = [(names.get(name, name), value) for name, value in headers.items()]
    request = Request("r", headers=Headers(fields), priority=priority, seed=seed)
    if found is not None:
        request.put(LATENCY_PREDICTION, found)
    return request
