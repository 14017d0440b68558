# SPDX-License-Identifier: Apache-2.0
"""Metrics handed out with pauses: the page stays the same, and rendering it takes a third of the time."""

from collections.abc import Callable

import pytest
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as open_metrics

from epp.observability.pacing import Paced


@pytest.fixture
def registry() -> CollectorRegistry:
    registry = CollectorRegistry()
    counter = Counter("answers", "Of many.", ["endpoint"], registry=registry)
    times = Histogram("seconds", "Of few.", registry=registry)
    for number in range(500):
        counter.labels(f"e{number}").inc(number)
        times.observe(number)
    return registry


@pytest.mark.parametrize("render", [generate_latest, open_metrics])
def test_page_is_the_same_however_often(registry, render: Callable[[object], bytes]):
    plain = render(registry)
    assert render(Paced(registry)) == render(Paced(registry)) == plain


def test_pauses_are_twice_the_work_and_come_soon(registry):
    now = 0.0
    looks = 0
    pauses: list[float] = []

    def clock() -> float:
        nonlocal now, looks
        looks += 1
        now += 0.0003  # the work between two looks
        return now

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds
        pauses.append(seconds)

    generate_latest(Paced(registry, clock=clock, sleep=sleep))
    assert len(pauses) > 500 / 16 / 2
    assert max(pauses) <= 2 * 0.0010
    assert sum(pauses) > 0.5 * now
