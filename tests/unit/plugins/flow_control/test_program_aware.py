# SPDX-License-Identifier: Apache-2.0
"""The program with the least decayed service is next, and the ledger of many programs stays small."""

from math import isclose

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.framework import ManualClock, Request, RequestBody, Response
from epp.framework.flow_control import Queued
from epp.framework.request import Usage
from epp.framework.testing import candidates
from epp.plugins.attained_service import ProgramAwareFairness, ProgramAwareParameters, ServiceLedger

HALF_LIFE = 60.0


def plugin(**parameters) -> ProgramAwareFairness:
    return ProgramAwareFairness(ProgramAwareParameters(**parameters), clock=ManualClock())


def request(flow: str, *, tokens: int = 100, received_at: float = 0.0) -> Request:
    return Request(flow, body=RequestBody(prompt_tokens=tokens), fairness_id=flow, received_at=received_at)


def answered(prompt_tokens: int, completion_tokens: int) -> Response:
    return Response(candidates(waiting=[0.0])[0], usage=Usage(prompt_tokens, completion_tokens, 0))


def queued(flow: str, number: int, at: float = 0.0) -> Queued:
    return Queued(request(flow), number, at, 1e9)


def waiting(policy: ProgramAwareFairness, *flows: str, at: float = 0.0):
    """Return an order of the policy with a request of each flow, in order of arrival."""
    order = policy.order()
    for number, flow in enumerate(flows):
        order.head(flow, 0.0, queued(flow, number, at))
    return order


def values(policy: ProgramAwareFairness) -> dict[str, float]:
    """Return the samples by metric, and by program if there is one."""
    short = {"program_aware_attained_service_tokens": "service", "program_aware_avg_wait_time_milliseconds": "wait"}
    return {
        " ".join((short.get(each.metric.name, "fairness"), *each.labels)): round(each.value, 3)
        for each in policy.samples
    }


def test_program_that_got_least_goes_first():
    policy = plugin()
    order = waiting(policy, "much", "little", "none")
    for flow, tokens in (("much", 1000), ("little", 10)):
        policy.pre_request(request(flow, tokens=tokens), None)
    assert order.first() == "none"
    order.dispatched("none")
    order.empty("none")
    assert order.first() == "little"


def test_tokens_that_the_endpoint_counts_replace_the_estimate():
    policy = plugin()
    one = request("a", tokens=100)
    policy.pre_request(one, None)
    assert values(policy)["service a"] == 100
    policy.report(one, answered(120, 300))
    assert values(policy)["service a"] == 120 + 2 * 300


def test_service_halves_in_a_half_life_and_the_estimate_with_it():
    policy = plugin(las_half_life_seconds=HALF_LIFE)
    one = request("a", tokens=100)
    policy.pre_request(one, None)
    policy.clock.advance(HALF_LIFE)
    assert values(policy)["service a"] == 50
    policy.report(one, answered(100, 50))
    assert values(policy)["service a"] == 200
    policy.clock.advance(2 * HALF_LIFE)
    assert values(policy)["service a"] == 50


def test_without_half_life_service_shrinks_with_every_turn():
    policy = plugin(las_half_life_seconds=0.0, las_decay_factor=0.5)
    order = waiting(policy, "b")
    policy.pre_request(request("a", tokens=100), None)
    policy.clock.advance(1000)
    assert values(policy)["service a"] == 100
    order.dispatched("b")
    assert values(policy)["service a"] == 50


def test_of_programs_with_equal_service_the_one_that_waits_longest_goes_first():
    order = plugin().order()
    order.head("late", 0.0, queued("late", 2, at=5.0))
    order.head("early", 0.0, queued("early", 1, at=1.0))
    assert order.first() == "early"


def test_service_of_thousands_of_half_lives_ago_counts_as_none():
    policy = plugin(las_half_life_seconds=1.0)
    order = waiting(policy, "a", "b")
    for _ in range(40):
        policy.clock.advance(100.0)  # 4000 half-lives: more than a float has
        policy.pre_request(request("a", tokens=7), None)
    assert values(policy)["service a"] == 7
    assert order.first() == "b"


def test_a_client_that_names_ever_new_programs_makes_the_picker_forget_not_grow():
    books = ServiceLedger(half_life_seconds=HALF_LIFE, factor=1.0, most=3)
    for name in "abcdef":
        books.charge(name, 1.0, 0.0)
    assert list(books.programs) == ["d", "e", "f"]


def test_program_without_requests_is_forgotten_after_its_time():
    policy = plugin(eviction_ttl_seconds=100.0, eviction_sweep_seconds=10.0)
    policy.pre_request(request("gone"), None)
    policy.clock.advance(101.0)
    policy.pre_request(request("here"), None)
    assert "service gone" not in values(policy)
    assert "service here" in values(policy)


def test_waits_of_programs_and_how_equal_they_are():
    policy = plugin()
    assert values(policy) == {"fairness": 1.0}
    policy.clock.advance(4.0)
    policy.pre_request(request("a", received_at=1.0), None)
    policy.pre_request(request("b", received_at=3.0), None)
    found = values(policy)
    assert (found["wait a"], found["wait b"]) == (3000, 1000)
    assert found["fairness"] == pytest.approx(16 / (2 * 10))  # (3 + 1)^2 / (2 * (9 + 1))


def test_page_shows_only_the_programs_with_most_service():
    policy = plugin()
    for number in range(300):
        policy.pre_request(request(f"p{number:03}", tokens=number + 1), None)
    found = values(policy)
    assert len(found) == 1 + 2 * 100
    assert "service p299" in found
    assert "service p199" not in found


def turns(policy: ProgramAwareFairness, **counts: int) -> None:
    for flow, count in counts.items():
        for _ in range(count):
            one = request(flow, received_at=policy.clock.now())
            policy.pre_request(one, None)
            policy.report(one, answered(10, 10))


def test_session_with_most_turns_goes_first_unless_another_waits_long():
    policy = plugin(strategy="turn-priority")
    turns(policy, deep=20, shallow=1)
    order = waiting(policy, "shallow")
    policy.clock.advance(300)
    order.head("deep", 0.0, queued("deep", 2, at=300.0))  # 300 s later: 21 turns against 2 + 0.05 * 300 = 17
    assert order.first() == "shallow"  # a session that rested for 300 s begins anew
    turns(policy, deep=19)
    assert order.first() == "deep"  # 20 against 17
    order.dispatched("deep")
    order.empty("deep")
    assert order.first() == "shallow"


def test_turns_of_a_session_count_while_it_waits():
    policy = plugin(strategy="turn-priority", turn_priority_time_weight=0)
    order = waiting(policy, "a", "b")
    assert order.first() == "a"  # of equal ones, the one that came first
    turns(policy, b=1)
    assert order.first() == "b"
    turns(policy, a=2)
    assert order.first() == "a"


@pytest.mark.parametrize(("seconds", "first"), [(120, "old"), (121, "new")])
def test_session_begins_with_turn_1_after_its_inactivity(seconds, first):
    policy = plugin(strategy="turn-priority")
    turns(policy, old=5)
    policy.clock.advance(seconds)
    turns(policy, new=1)
    assert waiting(policy, "new", "old", at=policy.clock.now()).first() == first  # 6 against 2, or 1 against 2


KINDS = st.sampled_from(["charge", "report", "head", "empty", "pass"])
EVENTS = st.lists(st.tuples(KINDS, st.sampled_from("abcde"), st.integers(1, 5000)), max_size=60)


@given(EVENTS)
def test_order_agrees_with_the_plain_definition(events):
    policy = plugin(las_half_life_seconds=HALF_LIFE, eviction_ttl_seconds=1e9)
    order = policy.order()
    charges: dict[str, list[tuple[float, int]]] = {}
    under_way: list[tuple[str, Request, int]] = []
    heads: dict[str, Queued] = {}
    for number, (event, flow, amount) in enumerate(events):
        now = policy.clock.now()
        if event == "charge":
            one = request(flow, tokens=amount)
            policy.pre_request(one, None)
            charges.setdefault(flow, []).append((now, amount))
            under_way.append((flow, one, len(charges[flow]) - 1))
        elif event == "report" and under_way:
            who, one, index = under_way.pop(0)
            policy.report(one, answered(amount, amount))
            charges[who][index] = (now, 3 * amount)
        elif event == "head":
            heads[flow] = queued(flow, number, now)
            order.head(flow, 0.0, heads[flow])
        elif event == "empty":
            heads.pop(flow, None)
            order.empty(flow)
        elif event == "pass":
            policy.clock.advance(amount % 900)
        if not heads:
            continue
        now = policy.clock.now()
        service = {
            each: sum(tokens * 2 ** (-(now - at) / HALF_LIFE) for at, tokens in charges.get(each, ())) for each in heads
        }
        wait = {each: now - head.enqueued_at for each, head in heads.items()}
        score = {each: 0.8 * (1 - share(service, each)) + 0.2 * share(wait, each) for each in heads}
        found = order.first()
        assert score[found] == max(score.values()) or isclose(score[found], max(score.values()), abs_tol=1e-3)


def share(numbers: dict[str, float], name: str) -> float:
    least, most = min(numbers.values()), max(numbers.values())
    return (numbers[name] - least) / (most - least) if most > least else 0.5
