# SPDX-License-Identifier: Apache-2.0
"""Pickers that tell each other the use of quotas share each limit."""

import msgspec
import pytest
from msgspec.structs import replace

from epp.admission.quotas import WhenAlone
from epp.admission.quotas.peer_use import GRACE_SECONDS
from epp.framework.quotas import SharedLimit
from epp.framework.sharing import MOST_PAYLOAD_BYTES
from epp.sharing.exchange import SILENCE_SECONDS, Batch, Exchange
from epp.sharing.settings import SharingSettings
from tests.support.quotas import GIB, TwoClocks, quota, tag, usage
from tests.unit.sharing.quota_pickers import QuotaPicker, meet, tell

REQUESTS, MINUTE, DAY = "total.max.workers.limit", "total.max.tokensPerMinute", "total.max.deviceSecondsPerDay"
GPU = [tag(devices=1)]


@pytest.fixture
def clock():
    return TwoClocks()


def three(clock: TwoClocks, when_alone=WhenAlone.LAST_KNOWN_SHARE, **total) -> list[QuotaPicker]:
    pickers = [QuotaPicker(clock, {"a": quota(**total)}, when_alone, endpoints=GPU) for _ in range(3)]
    meet(*pickers)
    return pickers


def spend(picker: QuotaPicker, seconds: float) -> None:
    """Use the only device for a time."""
    assert picker.send() == 1
    picker.clock.advance(seconds)
    picker.end()


def lose_server(*pickers: QuotaPicker, seconds: float) -> None:
    for picker in pickers:
        picker.exchange.connection(is_lost=True)
    pickers[0].clock.advance(seconds)
    for picker in pickers:
        picker.exchange.sweep()


def test_picker_alone_has_the_whole_quota_and_each_of_three_admits_its_share_at_once(clock):
    assert QuotaPicker(clock, {"a": quota(requests=12)}).send(20) == 12
    assert [picker.send(20) for picker in three(clock, requests=12)] == [4, 4, 4]


def test_one_picker_gets_the_whole_limit_as_the_others_hear_of_its_requests(clock):
    one, other, third = three(clock, requests=12)
    admitted = [one.send(20)]
    while one.used(REQUESTS) < 12:
        meet(one, other, third)
        admitted.append(one.send(20))
    assert admitted == [4, 2, 2, 1, 1, 1, 1]  # a third of 12, of 8, of 6, and then one at a time
    meet(one, other, third)
    assert [picker.used(REQUESTS) for picker in (one, other, third)] == [12, 12, 12]
    assert [picker.quotas.report("a")[0].elsewhere for picker in (one, other)] == [0, 12]
    assert (other.send(), third.send()) == (0, 0)


def test_limit_of_one_request_admits_it_at_any_picker_and_others_try_again_when_it_is_released(clock):
    one, other, third = three(clock, requests=1)
    assert one.send() == 1
    tell(one, other, third)
    assert (other.send(), third.send()) == (0, 0)
    one.end()
    third.came_back.clear()
    tell(one, other, third)
    assert third.came_back == ["a"]
    assert third.send() == 1


def test_tokens_of_a_minute_count_at_all_pickers_and_drain(clock):
    one, other, third = three(clock, tokens_per_minute=600)
    assert one.send(prompt=600) == 1  # one request is always a slice
    tell(one, other, third)
    assert other.send(prompt=60) == 0
    clock.advance(6.0)  # 10 tokens a second drain
    assert other.send(prompt=60) == 1
    one.end(usage=usage(300, 0))
    tell(one, other, third)
    assert third.used(MINUTE) == 300  # 600 - 60 + 60 - 300


def test_tokens_of_a_minute_that_pickers_admit_at_once_add_up_and_a_picker_that_starts_knows_them(clock):
    one, other, third = three(clock, tokens_per_minute=600)
    for picker in (one, other, third):
        assert picker.send(20, prompt=10) == 20
    late = QuotaPicker(clock, {"a": quota(tokens_per_minute=600)})
    meet(one, other, third, late)
    assert [picker.used(MINUTE) for picker in (one, other, third, late)] == [600] * 4


def test_use_of_the_day_counts_at_all_pickers_until_midnight(clock):
    one, other, third = three(clock, device_seconds_per_day=90)
    spend(one, 60.0)
    spend(other, 30.0)
    tell(one, other, third)
    assert third.used(DAY) == 90
    assert third.send() == 0
    clock.advance(86_400)
    assert third.used(DAY) == 0
    assert third.send() == 1


def daily(clock: TwoClocks) -> QuotaPicker:
    return QuotaPicker(clock, {"a": quota(device_seconds_per_day=90)}, endpoints=GPU)


def test_use_of_the_day_survives_restarts_while_another_picker_runs(clock):
    other = daily(clock)
    for seconds, before in ((60.0, 0), (30.0, 60)):
        one = daily(clock)
        meet(one, other)
        assert one.used(DAY) == before
        spend(one, seconds)
        meet(one, other)
        other.exchange.apply(one.exchange.collect(is_last=True), 0.0)
    third = daily(clock)
    meet(other, third)
    assert (other.used(DAY), third.used(DAY), third.send()) == (90, 90, 0)


def test_use_of_the_day_survives_a_restart_of_all_pickers_in_the_history(clock):
    one, again = daily(clock), daily(clock)
    spend(one, 60.0)
    for batch in (one.exchange.collect(), one.exchange.collect(is_last=True)):
        again.exchange.apply(batch, 1000.0)
    assert (again.used(DAY), again.exchange.peers, again.send()) == (60, 0, 1)


def test_use_is_told_again_each_minute_for_the_history(clock):
    one, told = daily(clock), []
    spend(one, 60.0)
    one.exchange.collect()
    for _ in range(61):
        clock.advance(1.0)
        told.append(len(one.exchange.collect()))
    assert max(told) > min(told) + 20


def test_requests_of_a_dead_picker_count_for_five_seconds(clock):
    one, other, third = three(clock, requests=3)
    one.send(3)
    meet(one, other, third)
    assert one.send(3) + other.send() == 2  # a slice is one request at least
    meet(one, other, third)
    assert other.send() == 0
    other.end(len(other.under_way))
    clock.advance(SILENCE_SECONDS + 0.1)
    third.exchange.sweep()
    assert third.send(5) == 3


def test_last_known_share_holds_while_the_server_is_away(clock):
    pickers = three(clock, requests=12)
    assert pickers[0].send(20) == 4
    meet(*pickers)  # 8 are left: 2 for each
    lose_server(*pickers, seconds=60.0)
    assert [picker.send(20) for picker in pickers] == [2, 2, 2]
    pickers[0].end(6)
    assert pickers[0].send(20) == 6
    for picker in pickers:
        picker.exchange.connection(is_lost=False)
    meet(*pickers)
    meet(*pickers)
    assert [picker.used(REQUESTS) for picker in pickers] == [10, 10, 10]
    assert pickers[1].send(20) >= 1


def test_last_known_share_of_a_minute_is_a_share_of_each_minute(clock):
    pickers = three(clock, tokens_per_minute=1800)
    lose_server(*pickers, seconds=10.0)
    admitted = 0
    for _ in range(10 * 60):
        admitted += pickers[0].send(prompt=10) * 10
        clock.advance(1.0)
    assert 9 * 600 <= admitted <= 11 * 600  # of 1800, a third


def test_pickers_may_refuse_while_the_server_is_away(clock):
    pickers = three(clock, WhenAlone.REFUSE, requests=12, tokens_per_minute=600, device_seconds_per_day=90)
    lose_server(*pickers, seconds=GRACE_SECONDS)
    assert pickers[0].send() == 1
    clock.advance(0.1)
    assert [picker.send() for picker in pickers] == [0, 0, 0]
    pickers[0].exchange.connection(is_lost=False)
    assert pickers[0].came_back[-1] == "a"
    assert pickers[0].send() == 1


def test_pickers_may_use_the_full_limit_while_the_server_is_away(clock):
    pickers = three(clock, WhenAlone.FULL_LIMIT, requests=12)
    lose_server(*pickers, seconds=GRACE_SECONDS + 0.1)
    assert [picker.send(20) for picker in pickers] == [12, 12, 12]


def test_pickers_that_are_not_heard_yet_after_an_outage_keep_their_share(clock):
    one, other, third = three(clock, requests=12)
    lose_server(one, other, third, seconds=SILENCE_SECONDS - 0.1)
    one.exchange.connection(is_lost=False)
    clock.advance(0.2)
    one.exchange.sweep()
    assert one.exchange.peers == 0
    assert one.send(20) == 4


def test_pickers_that_do_not_come_back_with_the_server_are_forgotten(clock):
    one, other, third = three(clock, requests=12)
    one.send(4)
    meet(one, other, third)
    lose_server(other, third, seconds=60.0)
    for picker in (other, third):
        picker.exchange.connection(is_lost=False)
    assert other.used(REQUESTS) == 4
    for _ in range(7):
        clock.advance(1.0)
        meet(other, third)
    assert other.used(REQUESTS) == 0
    assert other.send(20) == 6


def test_many_tenants_are_told_in_parts(clock):
    names = [f"tenant-{number:04}-{'x' * 100}" for number in range(1000)]
    one, other = (QuotaPicker(clock, dict.fromkeys(names, quota(requests=2))) for _ in range(2))
    meet(one, other)
    for name in names:
        one.send(tenant=name)
    parts = 0
    while other.quotas.tenants < 1000:
        batch = one.exchange.collect()
        other.exchange.apply(batch, 0.0)
        assert len(batch) < MOST_PAYLOAD_BYTES
        parts += 1
    assert parts == 7  # of 20 KiB
    one.end(1000)
    for _ in range(3 * parts):
        tell(one, other)
    assert {other.used(REQUESTS, name) for name in names} == {0}


def test_tenants_without_a_quota_here_are_not_counted(clock):
    one, other = QuotaPicker(clock, {"a": quota(requests=2)}), QuotaPicker(clock, {})
    meet(one, other)
    one.send()
    tell(one, other)
    assert other.quotas.tenants == 0
    assert other.exchange.counts["refused"] == 0


USE = [1, 0, 0, 0, 0, 0, 0]
GARBAGE = [
    [1, 1, True, {}, [["a", 1, [-1, *USE[1:]], 0, 0]]],
    [1, 1, True, {}, [["a", 1, [1, float("nan"), *USE[2:]], 0, 0]]],
    [1, 1, True, {}, [["a", 1, USE, float("inf"), 0]]],
    [1, 1, True, {}, [["a" * 257, 1, USE, 0, 0]]],
    [1, 1, True, {}, [["a", 1, USE, 0, 0, [["p", -1, 0]]]]],
    [1, 1, True, {}, [["a", 1, "use", 0, 0]]],
    [1, 1, True, {}, ["a"]],
    ["1"],
]


@pytest.mark.parametrize("payload", GARBAGE)
def test_invalid_payload_is_counted_and_not_used(clock, payload):
    one = QuotaPicker(clock, {"a": quota(requests=2)})
    part = {"quotas": msgspec.msgpack.encode(payload)}
    one.exchange.apply(msgspec.msgpack.encode(Batch("1l", "p", 1, part)), 0.0)
    assert one.exchange.counts["refused"] == 1
    assert one.quotas.tenants == 0
    assert one.send(5) == 2


def test_dry_runs_see_the_use_at_other_pickers(clock):
    one, other, third = three(clock, requests=1)
    one.send()
    tell(one, other, third)
    twin = other.quotas.twin([other.source], guard=other.quotas.allowances._guard)
    assert twin.refusal(other.request(), other.pool.snapshot, (0,)) is not None


def test_component_that_joins_without_contact_is_told(clock):
    one, parts = QuotaPicker(clock, {"a": quota(requests=12)}), []
    exchange = Exchange("late", lambda: tuple(parts), lambda: one.pool.snapshot, clock, salt=7)
    exchange.connection(is_lost=True)
    parts.append(one.quotas.share("late", WhenAlone.REFUSE))
    exchange.collect()
    clock.advance(GRACE_SECONDS + 0.1)
    assert one.send() == 0


def test_setting_without_shared_state_is_refused():
    with pytest.raises(ValueError, match="--shared-quotas-when-alone needs --shared-state"):
        SharingSettings(quotas_when_alone="refuse")


def test_is_16_limit_of_several_tenants_counts_their_requests_at_all_pickers(clock):
    shared = (SharedLimit(frozenset("ab"), 20 * GIB),)
    quotas = {each: replace(quota(accelerator_bytes=20 * GIB), shared=shared) for each in "ab"}
    one, other = (QuotaPicker(clock, quotas, endpoints=[tag(gib=10)]) for _ in range(2))
    meet(one, other)
    assert one.send(2, "a") == 1  # the rest is kept for the other
    meet(one, other)
    assert one.send(2, "a") == 1
    meet(one, other)
    assert other.send(1, "b") == 0
    one.end()
    meet(one, other)
    assert {"a", "b"} <= set(other.came_back)
    assert other.send(2, "b") == 1
