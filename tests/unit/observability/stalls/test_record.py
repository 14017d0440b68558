# SPDX-License-Identifier: Apache-2.0
"""Stalls in metrics, on /healthz and in the log."""

import pytest
from prometheus_client.registry import CollectorRegistry
from structlog.testing import capture_logs

from epp.framework import ManualClock
from epp.observability.stalls import Stall, StallRecord

SPAN = Stall("epp.bodies.members:next_member", 0.25, ("epp.bodies.members:next_member:12", "epp.x:y:3"))
SHORT = Stall("garbage collection", 0.0125)
OTHER = Stall("garbage collection", 0.125)


class Recorded:
    def __init__(self) -> None:
        self.clock, self.registry = ManualClock(), CollectorRegistry()
        self.record = StallRecord(self.clock, self.registry)

    def value(self, name: str, where: str) -> float | None:
        return self.registry.get_sample_value(f"llm_d_epp_event_loop_{name}_total", {"where": where})


@pytest.fixture
def recorded() -> Recorded:
    return Recorded()


def test_stalls_and_their_seconds_are_counted_by_place(recorded: Recorded):
    for stall in (SPAN, SHORT, SPAN):
        recorded.record.add(stall)
    assert recorded.value("stalls", SPAN.where) == 2
    assert recorded.value("stall_seconds", SPAN.where) == 0.5
    assert recorded.value("stalls", "garbage collection") == 1


def test_places_beyond_a_hundred_count_as_other(recorded: Recorded):
    for number in range(150):
        recorded.record.add(Stall(f"plugin:f{number}", 0.5))
    recorded.record.add(Stall("plugin:f0", 0.5))
    assert recorded.value("stalls", "other") == 50
    assert recorded.value("stalls", "plugin:f0") == 2


def test_log_has_a_line_of_a_long_stall_every_ten_seconds_at_most_with_the_stack(recorded: Recorded):
    with capture_logs() as lines:
        for _ in range(5):
            recorded.record.add(SPAN)
        recorded.clock.advance(10)
        recorded.record.add(SHORT)
        recorded.record.add(OTHER)
    assert [line["where"] for line in lines] == [SPAN.where, OTHER.where]
    assert lines[0]["calls"] == list(SPAN.stack)
    assert lines[0]["seconds"] == 0.25
    assert lines[1]["more_since_last_line"] == 4


def test_healthz_has_the_longest_of_the_last_ten_minutes(recorded: Recorded):
    assert recorded.record.as_fields == {}
    recorded.record.add(SPAN)
    recorded.clock.advance(300)
    recorded.record.add(SHORT)
    assert recorded.record.as_fields == {"longest_stall": {"where": SPAN.where, "seconds": 0.25, "seconds_ago": 300}}
    recorded.clock.advance(301)
    assert recorded.record.as_fields == {"longest_stall": {"where": SHORT.where, "seconds": 0.0125, "seconds_ago": 301}}
    recorded.clock.advance(600)
    assert recorded.record.as_fields == {}
