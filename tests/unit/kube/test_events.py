# SPDX-License-Identifier: Apache-2.0
"""Which events on the pool are due, and what they say."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.kube.events import CONFIGURATION, ENDPOINTS, TOPICS, EventSchedule, message_of


class Operator:
    """Has a schedule, and takes down what it tells."""

    def __init__(self) -> None:
        self.schedule = EventSchedule()
        self.now = 0.0
        self.heard: list[tuple[str, str]] = []

    def see(self, seconds: float = 0.0, *, writable: bool = True, **problems: str) -> list[tuple[str, str]]:
        """Let these problems last for a time; return what is told in it."""
        before = len(self.heard)
        topics = {topic: problems.get(topic.warning, "") for topic in TOPICS}
        end = self.now + seconds
        while True:
            self.schedule.observe(topics, self.now)
            event = self.schedule.due(self.now) if writable else None
            if event is not None:
                self.heard.append((event.reason, event.message))
                self.schedule.written(event, self.now)
            if self.now >= end:
                return self.heard[before:]
            self.now += 1.0


@pytest.fixture
def operator():
    return Operator()


def test_problem_is_told_once_and_so_are_its_change_and_its_end(operator):
    assert operator.see(600, ConfigurationRefused="line 3") == [("ConfigurationRefused", "line 3")]
    assert operator.see(10, ConfigurationRefused="line 4") == [("ConfigurationRefused", "line 4")]
    assert operator.see(600) == [("ConfigurationAccepted", CONFIGURATION.resolved)]


def test_problem_that_lasts_is_told_every_twenty_minutes_so_that_its_event_does_not_expire(operator):
    assert len(operator.see(3599, ConfigurationRefused="line 3")) == 3  # at 0, 1200 and 2400 s


def test_pool_without_endpoints_is_told_after_the_grace_period(operator):
    assert operator.see(14, NoEndpoints="none is ready") == []
    assert operator.see(100) == []
    operator.see(14, NoEndpoints="none has the labels")
    assert operator.see(2, NoEndpoints="none is ready") == [("NoEndpoints", "none is ready")]
    assert operator.see(1) == [("EndpointsFound", ENDPOINTS.resolved)]


def test_what_was_over_before_it_could_be_written_is_not_told(operator):
    operator.see(600, writable=False, ConfigurationRefused="line 3")
    assert operator.see(600) == []


def test_problems_of_different_topics_are_all_told(operator):
    told = operator.see(60, ConfigurationRefused="line 3", NoEndpoints="none is ready", ObjectsRefused="a, b")
    assert {reason for reason, _ in told} == {"ConfigurationRefused", "NoEndpoints", "ObjectsRefused"}


@given(st.lists(st.tuples(st.sampled_from(["", "a", "b"]), st.integers(1, 90)), max_size=20))
def test_problem_that_comes_and_goes_is_told_a_bounded_number_of_times_and_as_it_is_in_the_end(states):
    operator = Operator()
    for problem, seconds in states:
        operator.see(seconds, ConfigurationRefused=problem)
    # A burst of 3, one in 300 s, and one more for the end of the last 300 s.
    assert len(operator.heard) <= 3 + operator.now / 300 + 1
    last = states[-1][0] if states else ""
    operator.see(300, ConfigurationRefused=last)
    told = operator.heard[-1] if operator.heard else ("ConfigurationAccepted", CONFIGURATION.resolved)
    assert told == (("ConfigurationRefused", last) if last else ("ConfigurationAccepted", CONFIGURATION.resolved))


def test_message_is_one_line():
    assert message_of(["a.yaml:3:5: plugins[0]:\n no such type\x1b[31m", "b"]) == (
        "a.yaml:3:5: plugins[0]: no such type\\x1b[31m; b"
    )


def test_message_names_the_first_problems_and_counts_the_others():
    message = message_of(f"InferenceObjective llm/o-{number:03}: spec.priority is 'high'" for number in range(100))
    assert message.startswith("InferenceObjective llm/o-000: spec.priority is 'high'; InferenceObjective llm/o-001: ")
    # 52 characters each, and 2 between them: 18 are 970 of the 1000 bytes that leave room for the number
    assert message.endswith("llm/o-017: spec.priority is 'high'; and 82 more")


@given(st.lists(st.text(min_size=1), max_size=60), st.integers(1, 40))
def test_message_is_at_most_a_kibibyte_and_printable(problems, times):
    problems = [problem * times for problem in problems]
    message = message_of(problems)
    assert len(message.encode()) <= 1024
    assert message.isprintable()
    assert bool(message) == any(problem.split() for problem in problems) or len(problems) > 1
