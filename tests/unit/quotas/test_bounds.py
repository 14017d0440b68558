# SPDX-License-Identifier: Apache-2.0
"""Tenants that clients name at will leave little behind."""

import pytest

from epp.admission.quotas import Blocked
from tests.support.quotas import Desk, Listed, quota, tag

MOST_IDLE = 1_000


@pytest.fixture(autouse=True)
def most_idle(monkeypatch):
    """Keep a tenth of the accounts that a picker keeps."""
    monkeypatch.setattr("epp.admission.quotas.accounts.MOST_IDLE", MOST_IDLE)


class Everyone(Listed):
    """The same quota for every tenant."""

    plugin_type = "everyone"

    def quota_of(self, tenant):
        return self.quotas["default"]


def desk_for_everyone(**total):
    return Desk(sources=[Everyone({"default": quota(**total)})])


def test_tenants_with_limits_of_the_moment_alone_leave_nothing_behind():
    desk = desk_for_everyone(requests=10, accelerator_bytes=1e12)
    for number in range(2 * MOST_IDLE):
        desk.take(f"tenant-{number}").release()
    assert desk.quotas.tenants == 0


def test_tenants_with_tokens_of_the_minute_are_forgotten_once_these_are_back():
    desk = desk_for_everyone(tokens_per_minute=600)
    for number in range(300):
        desk.take(f"tenant-{number}", prompt=10, output=0).release()
    assert desk.quotas.tenants == 300
    desk.clock.advance(601)
    desk.quotas.sweep()
    assert desk.quotas.tenants == 250  # it looks at 50 in a sweep
    for _ in range(5):
        desk.quotas.sweep()
    assert desk.quotas.tenants == 0


def test_of_too_many_tenants_those_go_first_that_have_used_least():
    desk = desk_for_everyone(tokens_per_minute=6_000)
    for number in range(200):
        desk.take(f"heavy-{number}", prompt=6_000, output=0).release()
    for number in range(2 * MOST_IDLE):
        desk.take(f"light-{number}", prompt=1, output=0).release()
    assert desk.quotas.tenants == MOST_IDLE
    assert all(desk.used("total.max.tokensPerMinute", f"heavy-{number}") == 6_000 for number in range(200))


def test_a_tenant_that_comes_back_has_one_account():
    desk = desk_for_everyone(tokens_per_minute=600)
    for _ in range(3):
        begun = desk.take(prompt=1, output=0)
        assert desk.quotas.tenants == 1
        begun.release()
        assert desk.quotas.tenants == 1


def test_tenants_with_requests_under_way_are_all_kept():
    desk = desk_for_everyone(requests=1, tokens_per_minute=600)
    begun = [desk.take(f"tenant-{number}", prompt=1, output=0) for number in range(MOST_IDLE + 100)]
    assert desk.quotas.tenants == MOST_IDLE + 100
    for each in begun:
        each.release()
    assert desk.quotas.tenants == MOST_IDLE


def test_a_tenant_that_is_blocked_or_too_large_leaves_no_account():
    desk = Desk(tflops=10, endpoints=[tag(tflops=20)])
    for _ in range(3):
        assert isinstance(desk.take(), Blocked)
    assert desk.quotas.tenants == 0


def test_long_names_of_tenants_are_told_apart_and_not_kept():
    desk = desk_for_everyone(requests=1, tokens_per_minute=600)
    first = desk.take("x" * 100_000, prompt=1, output=0)
    assert not isinstance(desk.take("x" * 100_000 + "y"), Blocked)
    assert isinstance(desk.take("x" * 100_000), Blocked)
    first.release()
    assert desk.came_back == ["x" * 100_000]  # as the requests that wait are called
    assert max(len(line.tenant) for line in desk.quotas.report()) < 200
    assert not isinstance(desk.take("x" * 100_000), Blocked)
