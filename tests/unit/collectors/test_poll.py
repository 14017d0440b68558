# SPDX-License-Identifier: Apache-2.0
"""The polls of one endpoint: what pages and failures do to its numbers, and to whether it is used."""

import math

import pytest
from structlog.testing import capture_logs

from epp.framework import Endpoint, ManualClock
from epp.framework.datalayer import Contact, Extractor, Feed, PageError, Report, UnreachableError
from epp.framework.snapshot import KV_BLOCK_TOKENS, METRICS_AT, REACHABLE, RUNNING
from epp.pool.collectors.engine_metrics import CoreMetricsExtractor
from epp.pool.collectors.polling.conditions import Conditions, Reachability
from epp.pool.collectors.polling.poll import Poll
from epp.pool.collectors.polling.poll_schedule import next_due
from epp.routing.datastore import Datastore
from tests.support.scripted_source import PAGE, Errors, Length, Script, collect_once, value

E = Endpoint("e", "10.0.0.1", 8000)
REFUSED = UnreachableError("refused", refused=True)
SILENT = UnreachableError("silent", refused=False)


class Broken(Extractor):
    plugin_type = "broken"

    def extract(self, page: bytes, endpoint: Endpoint) -> Report:
        raise KeyError("bug")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(100.0)


@pytest.fixture
def store(clock) -> Datastore:
    store = Datastore(clock)
    store.replace([E])
    return store


@pytest.fixture
def errors() -> Errors:
    return Errors()


@pytest.fixture
def conditions() -> Conditions:
    return Conditions()


@pytest.fixture
def poll_of(store, errors, clock, conditions):
    """Make a poll of E; those of one test share what they know of its reachability."""
    reachability = Reachability(store, E, conditions)

    def make(*answers: bytes | Exception, extractors=None, port=None, interval_seconds=0.05) -> Poll:
        feed = Feed(Script(*answers, port=port), tuple(extractors or [CoreMetricsExtractor()]))
        return Poll(store, feed, reachability, clock=clock, interval_seconds=interval_seconds, observer=errors)

    return make


async def test_bad_page_keeps_values_is_counted_each_time_and_logged_once(store, poll_of, errors):
    poll = poll_of(PAGE, PageError("answered 500"), PageError("answered 500"), PAGE, PageError("answered 500"))
    with capture_logs() as logs:
        for _ in range(5):
            await collect_once(poll, E)
    assert value(store) == 3
    assert errors.seen == [("script",)] * 3
    assert [entry["event"] for entry in logs] == ["endpoint not read", "endpoint read again", "endpoint not read"]
    assert logs[0]["reason"] == "answered 500"


@pytest.mark.parametrize("gone", [PageError("answered 404"), b"<html>"], ids=["none", "one that no extractor can read"])
async def test_numbers_of_a_page_that_is_gone_become_unknown_after_two_seconds(store, poll_of, clock, gone):
    page = b'vllm:num_requests_waiting 3\nvllm:cache_config_info{block_size="16"} 1\n'
    poll = poll_of(page, *[gone] * 3, page)
    await collect_once(poll, E)
    clock.advance(1.9)
    await collect_once(poll, E)
    assert value(store) == 3
    clock.advance(0.1)
    await collect_once(poll, E)
    assert math.isnan(value(store))
    assert value(store, KV_BLOCK_TOKENS) == 16  # a size, which the engine still has
    assert value(store, METRICS_AT) == 100.0
    clock.advance(1)
    await collect_once(poll, E)
    await collect_once(poll, E)
    assert value(store) == 3


@pytest.mark.parametrize(
    ("interval", "delay"), [(10, 0.0), (0.05, 9.9)], ids=["long interval", "turns are rare in a large pool"]
)
async def test_slowly_polled_numbers_stay_for_three_polls(store, poll_of, clock, interval, delay):
    poll = poll_of(PAGE, *[PageError("answered 500")] * 2, interval_seconds=interval)
    await collect_once(poll, E, delay)
    clock.advance(20)
    await collect_once(poll, E, delay)
    assert value(store) == 3
    clock.advance(10)
    await collect_once(poll, E, delay)
    assert math.isnan(value(store))


async def test_problem_of_another_kind_is_logged_although_there_was_one_before(poll_of):
    poll = poll_of(PageError("answered 404"), PageError("answered 404"), REFUSED, REFUSED, PageError("answered 404"))
    with capture_logs() as logs:
        for _ in range(5):
            await collect_once(poll, E)
    assert [entry["reason"] for entry in logs] == ["answered 404", "refused", "answered 404"]


@pytest.mark.parametrize(
    "failures",
    [[*[PageError("answered 404")] * 3, b"other 1\n", *[PageError("answered 404")] * 2], [REFUSED] * 6],
    ids=["without a page", "unreachable"],
)
async def test_endpoint_that_gives_no_page_is_asked_less_and_less_often_up_to_once_a_second(poll_of, failures):
    poll = poll_of(*failures, PAGE)
    waits = [await collect_once(poll, E) for _ in range(7)]
    assert waits == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 0.05])


@pytest.mark.parametrize(("delay", "longest"), [(0.0, 1.0), (0.1, 1.0), (3.0, 12.0)])
async def test_refusing_endpoint_waits_a_second_or_four_turns(poll_of, delay, longest):
    poll = poll_of(*[REFUSED] * 8, interval_seconds=0.5)
    waits = [await collect_once(poll, E, delay) for _ in range(8)]
    assert waits == sorted(waits)
    assert waits[-1] == longest


async def test_condition_follows_what_the_last_polls_met(poll_of, conditions):
    answers = [PAGE, PageError("answered 404"), REFUSED, SILENT, SILENT, SILENT, REFUSED, PAGE]
    poll = poll_of(*answers)
    met = []
    for _ in answers:
        await collect_once(poll, E)
        ((_, condition),) = conditions.all
        met.append((condition.contact, condition.used))
    assert met == [
        (Contact.ANSWERS, True),
        (Contact.NO_PAGE, True),
        (Contact.REFUSED, False),
        (Contact.REFUSED, False),
        (Contact.REFUSED, False),
        (Contact.SILENT, False),  # the third timeout in a row
        (Contact.REFUSED, False),
        (Contact.ANSWERS, True),
    ]


async def test_endpoint_without_metrics_says_how_its_load_is_judged_and_what_to_do(poll_of, conditions):
    await collect_once(poll_of(PageError("answered 404")), E)
    ((_, condition),) = conditions.all
    assert condition.why == "answered 404; its load is estimated from the requests sent to it"
    assert condition.remedy == "enable its metrics, or set path or port of script"


async def test_condition_changes_once_for_many_polls_of_one_kind(store, conditions):
    changes = []
    conditions.subscribe(lambda: changes.append(conditions.all[0][1].contact))
    reachability = Reachability(store, E, conditions)
    for error in [REFUSED] * 3 + [SILENT] * 4:
        reachability.missed(error)
    reachability.answered()
    assert changes == [Contact.NOT_ASKED, Contact.REFUSED, Contact.SILENT, Contact.ANSWERS]


@pytest.mark.parametrize(
    ("answers", "port", "reachable"),
    [
        pytest.param([PAGE, REFUSED, PAGE], None, [1, 0, 1], id="refusal"),
        pytest.param([PAGE, SILENT, SILENT, PAGE, SILENT, SILENT, SILENT], None, [1] * 6 + [0.5], id="third silence"),
        pytest.param([PAGE, REFUSED, PageError("answered 500")], None, [1, 0, 1], id="bad page"),
        pytest.param([PAGE, REFUSED, REFUSED, SILENT, SILENT, SILENT], 9400, [1] * 6, id="beside the endpoint"),
    ],
)
async def test_endpoint_is_reachable_until_a_refusal_or_three_silences(store, poll_of, answers, port, reachable):
    poll, found = poll_of(*answers, port=port), []
    for _ in answers:
        await collect_once(poll, E)
        found.append(value(store, REACHABLE))
        assert value(store) == 3  # what was known stays
    assert found == reachable


async def test_page_from_beside_the_endpoint_does_not_bring_it_back(store, poll_of):
    await collect_once(poll_of(REFUSED), E)
    await collect_once(poll_of(b"xx", extractors=(Length(),), port=9400), E)
    assert value(store, RUNNING) == 2
    assert value(store, REACHABLE) == 0


async def test_one_extractor_that_fails_does_not_silence_the_others(store, poll_of, errors):
    poll = poll_of(PAGE, PAGE, extractors=[Broken(), Length()])
    with capture_logs() as logs:
        await collect_once(poll, E)
        await collect_once(poll, E)
    assert value(store, RUNNING) == len(PAGE)
    assert errors.seen == [("script", "broken")] * 2
    (entry,) = logs
    assert entry["extractor"] == "broken"
    assert entry["reason"].startswith("KeyError: 'bug' (")


async def test_source_with_a_bug_is_counted_and_asked_again(store, poll_of, errors):
    poll = poll_of(RuntimeError("bug"), PAGE)
    with capture_logs() as logs:
        assert await collect_once(poll, E) == 0.05
        await collect_once(poll, E)
    assert errors.seen == [("script",)]
    assert logs[0]["reason"].startswith("RuntimeError: bug (")
    assert (value(store), value(store, REACHABLE)) == (3, 1)


@pytest.mark.parametrize(
    ("due", "wait", "now", "expected"),
    [
        (10.0, 0.5, 10.1, 10.5),  # in time: the beat is kept, whatever the page took
        (10.0, 0.5, 9.9, 10.5),
        (10.0, 0.5, 11.2, 11.5),  # beats at 10.5 and 11.0 were missed
        (10.0, 0.5, 10.5, 11.0),
    ],
)
def test_beats_are_at_a_fixed_rate_and_missed_ones_are_skipped(due, wait, now, expected):
    assert next_due(due, wait, now) == expected
