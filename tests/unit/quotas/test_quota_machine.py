# SPDX-License-Identifier: Apache-2.0
"""Whatever opens, ends, repeats, moves and changes: a naive model agrees, nothing is negative, and all ends at zero."""

import random
from math import inf

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from epp.admission.quotas import Blocked
from epp.admission.quotas.quotas import NOMINATION_SECONDS
from epp.framework.accelerators.tag import AcceleratorTag
from epp.framework.refusals import OverQuotaError
from epp.framework.testing import candidates
from tests.support.quotas import GIB, Desk, quota, tag, usage

SHARERS = 4
ENDPOINTS = [
    tag(gib=80, tflops=400, devices=2, dollars_per_hour=36),
    tag(gib=16, tflops=65, dollars_per_hour=3.6),
    AcceleratorTag(),
]
QUOTAS = [
    quota(requests=3),
    quota(requests=5, tokens=1000, accelerator_bytes=60 * GIB),
    quota(tflops=350, tokens_per_minute=600, waits=False),
    quota(device_seconds_per_day=50, dollars_per_day=0.3, requests=6),
    quota(requests=4, single={"devices": 1, "prompt_tokens": 300}),
]
TENANTS = ["a", "b", "c"]
NAMES = {
    "total.max.workers.limit": 0,
    "total.max.tokens": 1,
    "total.max.vram.request": 2,
    "total.max.tflops.request": 3,
}
KEYS = ("requests", "tokens", "accelerator_bytes", "tflops")


class Model:
    """What each request under way takes, in a list."""

    def __init__(self) -> None:
        self.under_way = []

    def sums(self, tenant):
        mine = [taken for each, taken in self.under_way if each.tenant == tenant and each.is_limited]
        return [sum(taken[part] for taken in mine) for part in range(4)]


def amounts(request, tags, mean):
    body = request.body
    output = mean if body.max_output_tokens is None else body.max_output_tokens
    return (
        1,
        body.prompt_tokens + output,
        sum((each.memory_bytes or 0) * each.count for each in tags) / SHARERS,
        sum(each.tflops() for each in tags) / SHARERS,
    )


class QuotaMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.desk = Desk({"a": QUOTAS[0], "b": QUOTAS[1]}, endpoints=ENDPOINTS, requests_per_endpoint=SHARERS)
        self.model = Model()
        self.ended = []
        self.pool = list(ENDPOINTS)
        self.held_until = {}

    @rule(
        tenant=st.sampled_from(TENANTS),
        priority=st.integers(-1, 1),
        slots=st.sampled_from([(0,), (1,), (2,), (2, 0), (0, 1)]),
        tokens=st.tuples(st.sampled_from([0, 1, 50, 200, 400]), st.sampled_from([0, 10, 100, 500])),
    )
    def open(self, tenant, priority, slots, tokens):
        prompt, output = tokens
        desk = self.desk
        request = desk.request(tenant, priority=priority, prompt=prompt, output=output)
        try:
            desk.quotas.check_single(request)
        except OverQuotaError:
            return
        slot, *leg = slots if max(slots) < len(self.pool) else (0,)
        expected = amounts(request, [self.pool[each] for each in (slot, *leg)], 0.0)
        before = self.model.sums(tenant)
        blocked_before = desk.quotas.breach(request)
        fitting = desk.quotas.fitting(request, desk.pool)
        found = desk.quotas.assume(request, desk.pool.snapshot, slot, leg)
        allowed = desk.quotas.quota_of(tenant)
        if isinstance(found, Blocked):
            assert found.breach.requested > found.breach.limit or found.breach.key.endswith("PerDay")
            assert 1 <= found.retry_after_seconds <= 86_400
            assert found.until is None or found.until >= desk.clock.now()
            part = NAMES.get(found.breach.key)
            if part is not None and self.held_until.get(tenant, 0) <= desk.clock.now():
                assert before[part] + expected[part] > found.breach.limit
            return
        self.model.under_way.append((found, expected))
        if allowed is None:
            assert not found.is_limited
            return
        assert blocked_before is None
        if not leg and fitting is not None and allowed.single == QUOTAS[0].single:
            assert fitting[slot]
        for used, more, key in zip(before, expected, KEYS, strict=True):
            assert not more or used + more <= (getattr(allowed.total, key) or inf) * (1 + 1e-6)

    @precondition(lambda self: self.model.under_way)
    @rule(data=st.data(), verb=st.sampled_from(["first_token", "release", "usage", "unserved"]))
    def end(self, data, verb):
        position = data.draw(st.integers(0, len(self.model.under_way) - 1))
        each, taken = self.model.under_way[position]
        if verb == "first_token":
            if not each.is_answered and len(each.places) > 1:
                hardware = amounts(each.request, [each.places[0].share.tag], 0.0)
                self.model.under_way[position] = each, (*taken[:2], *hardware[2:])
            each.first_token()
        else:
            each.release(usage(50, 20) if verb == "usage" else None, unserved=verb == "unserved")
            self.ended.append(self.model.under_way.pop(position)[0])

    @precondition(lambda self: self.model.under_way)
    @rule(data=st.data(), slot=st.integers(0, 2))
    def move(self, data, slot):
        position = data.draw(st.integers(0, len(self.model.under_way) - 1))
        each, taken = self.model.under_way[position]
        slot = slot % len(self.pool)
        each.move(self.desk.pool.snapshot, slot)
        hardware = amounts(each.request, [place.share.tag for place in each.places], 0.0)
        self.model.under_way[position] = each, (*taken[:2], *hardware[2:])

    @precondition(lambda self: self.ended)
    @rule(data=st.data())
    def repeat(self, data):
        each = data.draw(st.sampled_from(self.ended))
        each.first_token()
        each.move(self.desk.pool.snapshot, 0)
        each.release(usage(10**6, 10**6))

    @rule(tenant=st.sampled_from(TENANTS), which=st.sampled_from([None, *QUOTAS]), how=st.sampled_from("asd"))
    def change(self, tenant, which, how):
        if how == "a":
            self.desk.quotas.adjust(tenant, which)
        elif how == "d":
            assert not self.desk.quotas.adjust(tenant, which, dry_run=True).is_applied
        else:
            self.desk.source.quotas = {**self.desk.source.quotas, tenant: which}

    @rule(seconds=st.sampled_from([0.1, 7.0, 61.0, 700.0, 90_000.0]), wall=st.sampled_from([0, 0, -86_400, 10**6]))
    def pass_time(self, seconds, wall):
        self.desk.clock.advance(seconds)
        self.desk.clock.wall += wall

    @rule()
    def sweep(self):
        self.desk.quotas.sweep()
        assert not [each for each, _ in self.model.under_way if each.is_released]

    @rule(gone=st.booleans())
    def change_pool(self, gone):
        self.pool = list(ENDPOINTS[:2] if gone else ENDPOINTS)
        self.desk.pool = candidates(accelerators=self.pool)

    @rule(tenant=st.sampled_from(TENANTS), end=st.booleans(), prompt=st.sampled_from([0, 200]))
    def preempt(self, tenant, end, prompt):
        request = self.desk.request(tenant, priority=1, prompt=prompt)
        found = self.desk.quotas.victims(request, lambda each: not each.is_answered, self.desk.pool)
        for each in found or []:
            assert each.tenant == tenant
            assert each.priority < 1
            assert not each.is_answered
        if found and end:
            self.desk.quotas.nominate(request, found)
            for each in found:
                each.release()
            self.ended += found
            self.model.under_way = [pair for pair in self.model.under_way if pair[0] not in found]
            assert self.desk.quotas.breach(request) is None
            self.held_until[tenant] = self.desk.clock.now() + NOMINATION_SECONDS
            self.desk.clock.advance(NOMINATION_SECONDS / 2)

    @invariant()
    def model_agrees(self):
        assert self.desk.quotas.requests == len(self.model.under_way)
        for tenant in TENANTS:
            lines = {line.key: line for line in self.desk.quotas.report(tenant)}
            sums = self.model.sums(tenant)
            for name, part in NAMES.items():
                assert name not in lines or lines[name].used == pytest.approx(sums[part])
            assert all(line.used >= 0 for line in lines.values())
            assert all(line.used <= 5 * line.limit for key, line in lines.items() if key.endswith("PerMinute"))

    def teardown(self):
        for each, _ in self.model.under_way:
            each.release()
        quotas = self.desk.quotas
        for tenant in TENANTS:
            quotas.adjust(tenant, quota(requests=1000, tokens=10**9, accelerator_bytes=1e15, tflops=1e9))
        assert all(line.used == 0 for tenant in TENANTS for line in quotas.report(tenant))
        assert quotas.requests == quotas.endpoints == 0
        self.desk.clock.advance(200_000)
        for _ in range(3):
            quotas.sweep()
            self.desk.clock.advance(100)
        assert quotas.tenants == 0


TestQuotas = QuotaMachine.TestCase


def test_tf_8_ten_thousand_events_leave_zero():
    chance = random.Random(8)
    limits = {"requests": 40, "tokens": 9000, "accelerator_bytes": 400 * GIB, "device_seconds_per_day": 10**6}
    desk = Desk({tenant: quota(**limits) for tenant in TENANTS}, endpoints=ENDPOINTS, requests_per_endpoint=SHARERS)
    under_way, seen, begun = [], [], 0
    for number in range(10_000):
        event = chance.random()
        if event < 0.45:
            found = desk.take(chance.choice(TENANTS), chance.randrange(3), prompt=chance.randrange(500), output=9)
            if not isinstance(found, Blocked):
                begun += 1
                under_way.append(found)
                seen.append(found)
        elif event < 0.85 and under_way:
            under_way.pop(chance.randrange(len(under_way))).release()
        elif seen:  # of any age: a duplicate, or news of a request that is over
            each = chance.choice(seen[-200:])
            chance.choice([each.first_token, each.release])()
        if event > 0.999:
            desk.clock.advance(300)
            desk.quotas.sweep()
        if number % 5 == 0:
            assert all(0 <= line.used <= line.limit for line in desk.quotas.report())
    assert begun > 1000
    for each in under_way:
        each.release()
    assert all(line.used == 0 for line in desk.quotas.report() if "PerDay" not in line.key)
    assert desk.quotas.requests == desk.quotas.endpoints == 0
