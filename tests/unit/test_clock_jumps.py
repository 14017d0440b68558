# SPDX-License-Identifier: Apache-2.0
"""A time of day that is set forward or back by hours: what goes by it, and that nothing else does."""

import ast
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import epp
from epp.admission.quotas.usage import DAY_SECONDS, Calendar, DayUse
from epp.framework import ManualClock

NOON = 20_000 * DAY_SECONDS + DAY_SECONDS / 2
LONGEST_DAY = DAY_SECONDS + 3600
HOUR = 3600.0

ASKS_FOR_THE_TIME_OF_DAY = {
    "pool/collectors/exposition.py": {"time.time"},  # time stamps of a page are times of day
    "admin/configuration.py": {"datetime.now"},  # of a page
    "cli/calibrate.py": {"datetime.now"},  # of a server profile
    "lab/demo/servers.py": {"datetime.now"},  # a date in an object of the demo
    "pool/tokens/chat_template.py": {"datetime.now"},  # a date in a prompt
    "extproc/pem.py": {"dt.datetime.now"},  # of a certificate that is made
    "framework/clock.py": {"time.time"},
    "framework/plugin_status.py": {"time.time"},  # `_created` of a histogram
    "telemetry/families.py": {"time.time"},  # `_created` of a counter
    "telemetry/logs.py": {"time.time", "time.time_ns", "datetime.now"},  # of a log line
    "lab/sim/openai_api.py": {"time.time"},  # `created` of an answer
    "lab/sim/completions.py": {"time.time"},
    "lab/sim/server.py": {"time.time"},
}
"""All other modules have a clock passed in, whose `now` never jumps."""
USES_UTC = {
    "pool/clusters/tagger.py",  # taints, which begin and end at times of day
    "pool/collectors/dynamic_scores/scorer.py",  # the range of a query
    "pool/predicted_latency/producer.py",  # of a training entry
    "explain/recorder.py",  # of a record
    "kube/events.py",
    "kube/leader_election.py",  # for people: who leads is decided by `now`
    "admin/simulate.py",  # of requests that are only tried
    "app/operators.py",  # of scores on a page
    "plugins/label_filters.py",
    "admission/quotas/usage.py",
}


class JumpingClock(ManualClock):
    """A clock whose time of day is set by hand."""

    def __init__(self) -> None:
        super().__init__(1000.0)
        self.ahead = NOON - 1000.0

    def utc(self) -> float:
        return self.now() + self.ahead


def test_time_of_day_is_asked_for_only_where_it_is_shown_or_meant():
    house = Path(epp.__file__).parent
    wall = {"time.time", "time.time_ns", "datetime.now", "dt.datetime.now", "datetime.datetime.now", "datetime.utcnow"}
    for file in sorted(house.rglob("*.py")):
        name = str(file.relative_to(house))
        text = file.read_text(encoding="utf-8")
        if not re.search(r"\.(time|time_ns|now|utcnow|utc)\b", text):
            continue  # to parse and to write all modules takes two seconds
        attributes = {ast.unparse(node) for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Attribute)}
        assert attributes & wall == ASKS_FOR_THE_TIME_OF_DAY.get(name, set()), name
        asks = {each for each in attributes if each.endswith("clock.utc") or each == "self.clock.utc"}
        assert not asks or name in USES_UTC, name


STEPS = st.lists(
    st.tuples(st.floats(0, 6 * HOUR), st.sampled_from([0.0] * 6 + [-48 * HOUR, -3 * HOUR, 2 * HOUR, 30 * HOUR])),
    max_size=60,
)


@given(steps=STEPS)
def test_budget_of_a_day_is_given_once_a_day_whatever_the_clock_does(steps):
    clock = JumpingClock()
    calendar = Calendar(clock)
    days = [(calendar.today(), clock.now(), clock.utc() // DAY_SECONDS)]
    for seconds, jump in steps:
        clock.advance(seconds)
        clock.ahead += jump
        today, day = calendar.today(), clock.utc() // DAY_SECONDS
        before, since, _ = days[-1]
        assert today in (before, before + 1)  # never back, and none is left out
        if today == before:
            assert clock.now() - since < LONGEST_DAY  # an hour of a clock that is wrong stops no budget for good
        else:
            assert day > days[-1][2] or clock.now() - since >= LONGEST_DAY  # a clock set back begins none
            days.append((today, clock.now(), day))
        assert 0 <= calendar.seconds_left() <= DAY_SECONDS  # the longest Retry-After


@pytest.mark.parametrize("hours", [-20, -1, 1, 11])
def test_jump_within_the_day_takes_no_budget_and_gives_none(hours):
    clock = JumpingClock()
    calendar, use = Calendar(clock), DayUse()
    use.add(100.0, calendar.today())
    clock.ahead += hours * HOUR
    assert use.taken(calendar.today()) == 100.0
    clock.ahead -= hours * HOUR
    assert use.taken(calendar.today()) == 100.0
    assert calendar.seconds_left() == DAY_SECONDS / 2


def test_clock_that_was_a_day_ahead_for_a_moment_gives_one_budget_too_many_and_no_more():
    clock = JumpingClock()
    calendar, use = Calendar(clock), DayUse()
    use.add(100.0, calendar.today())
    clock.ahead += 24 * HOUR
    assert use.taken(calendar.today()) == 0.0
    use.add(100.0, calendar.today())
    clock.ahead -= 24 * HOUR
    for _ in range(24):  # midnight comes, and the noon that the clock showed too early
        assert use.taken(calendar.today()) == 100.0
        clock.advance(HOUR)
    clock.advance(HOUR)
    assert use.taken(calendar.today()) == 0.0
