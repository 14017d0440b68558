# SPDX-License-Identifier: Apache-2.0
"""Predict the times of requests from expected ones and from earlier responses of their model."""

from collections import Counter
from collections.abc import Sequence
from math import isfinite, nan
from typing import NamedTuple

import numpy as np

from epp.framework import ACCELERATOR, Candidates, Floats, Positions, Snapshot
from epp.framework.plugin_status import endpoint_state
from epp.pool.predicted_latency.messages import Kind
from epp.pool.predicted_latency.quantiles import LatencyQuantiles, Place, QuantilePrediction

_MOST_MODELS = 8
"""Models that are learned one by one; the others together."""
_OTHER = "other models"
_KINDS: tuple[Kind, ...] = ("ttft", "tpot")


class Expected(NamedTuple):
    """Expected times of one kind, by candidate, with the bases and buckets to learn them by."""

    seconds: Floats
    base: Floats
    """Seconds that the learned ratio refers to."""
    buckets: Positions


class Outlook(NamedTuple):
    """Predicted times of one kind for the candidates of a request."""

    model: str
    slots: Positions
    expected: Expected
    found: QuantilePrediction


class Lesson(NamedTuple):
    """A predicted time whose measured one is still to come."""

    model: str
    place: Place
    epoch: int
    expected: float
    base: float
    learned: float
    """Learned median; NaN where the prediction was not sure."""
    p90: float
    """NaN likewise."""


class LatencyLearner:
    """Learns the quantiles of both times for each model, once responses of it were measured."""

    def __init__(self) -> None:
        self._models: dict[str, dict[Kind, LatencyQuantiles]] = {}
        self._epochs: Counter[int] = Counter()
        """By slot; another endpoint has another one."""

    def predict(self, kind: Kind, model: str, candidates: Candidates, expected: Expected, now: float) -> Outlook:
        """Return predicted times for the candidates: the expected ones until enough is learned."""
        name = model if model in self._models or len(self._models) < _MOST_MODELS else _OTHER
        known, slots = self._models.get(name), candidates.slots
        if known is None:
            nothing, seconds = np.zeros(len(slots)), expected.seconds
            found = QuantilePrediction(seconds, seconds, nothing > 0, nothing, nothing)
        else:
            found = known[kind].predict(
                candidates.snapshot, slots, expected.buckets, base=expected.base, expected=expected.seconds, now=now
            )
        return Outlook(name, slots, expected, found)

    def lesson(self, outlook: Outlook, snapshot: Snapshot, slot: int) -> Lesson | None:
        """Return the prediction for a slot, to learn from; None if it was no candidate."""
        at = np.flatnonzero(outlook.slots == slot)
        if not len(at):
            return None
        (model, _, expected, found), index = outlook, at.item(0)
        is_sure = found.sure.item(index)
        return Lesson(
            model,
            Place(slot, snapshot.records(ACCELERATOR).values[slot].primary_class, expected.buckets.item(index)),
            self._epochs[slot],
            expected.seconds.item(index),
            expected.base.item(index),
            expected.base.item(index) * found.ratio.item(index) if is_sure else nan,
            found.p90.item(index) if is_sure else nan,
        )

    def learn(self, kind: Kind, lesson: Lesson, seconds: float) -> None:
        """Add a measured time."""
        if self._epochs[lesson.place.slot] != lesson.epoch or not isfinite(lesson.base) or lesson.base <= 0:
            return
        model = self._models.get(lesson.model)
        if model is None:
            model = self._models[lesson.model] = {each: LatencyQuantiles() for each in _KINDS}
        model[kind].learn(lesson.place, base=lesson.base, measured=seconds)
        if isfinite(lesson.learned):
            model[kind].compare(seconds, lesson.expected, lesson.learned)

    def forget(self, slots: Sequence[int]) -> None:
        """Drop the samples of endpoints that left."""
        self._epochs.update(slots)
        for model in self._models.values():
            for quantiles in model.values():
                quantiles.forget(slots)

    def dump(self, snapshot: Snapshot) -> dict[str, object]:
        """Return samples and errors by model, for at most 100 endpoints."""
        return {
            name: {
                "meanErrorSeconds": {
                    kind: dict(zip(("rates", "learned"), each.errors, strict=True)) for kind, each in model.items()
                },
                "samples": endpoint_state(
                    snapshot, {kind: each.samples(snapshot.capacity) for kind, each in model.items()}
                ),
            }
            for name, model in self._models.items()
        }
