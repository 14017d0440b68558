# SPDX-License-Identifier: Apache-2.0
"""Buffered bytes are counted exactly; the oldest large holder is evicted."""

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from epp.extproc.http2.limits import GRACE_SECONDS, Account, BufferedBytes, Capacity
from epp.framework import ManualClock

MIB = 1024 * 1024
LIMIT = 8 * MIB
LARGE_LIMIT = 7 * MIB
"""What is left of it for large holders."""


def holding(held: BufferedBytes, size: int) -> tuple[Account, list[str]]:
    account, told = held.account(), []
    account.on_evict = lambda: told.append("give way")
    assert account.add(size)
    return account, told


def test_things_are_refused_beyond_the_limit_and_have_room_again_once_others_are_given_back():
    told = []
    capacity = Capacity("streams", 2, told.append)
    assert [capacity.take() for _ in range(3)] == [True, True, False]
    assert (capacity.used, capacity.refusals, told) == (2, 1, [capacity])
    capacity.give_back()
    assert capacity.take()


def test_a_large_holder_is_refused_while_the_others_have_had_no_time():
    held = BufferedBytes("bytes", LIMIT, clock=ManualClock().now)
    other, told = holding(held, 5 * MIB)
    late = held.account()
    assert late.add(2 * MIB)
    assert not late.add(1)
    assert (late.size, other.size, told, held.refusals) == (2 * MIB, 5 * MIB, [], 1)


def test_the_oldest_holder_gives_way_once_it_has_had_its_time():
    clock = ManualClock()
    held = BufferedBytes("bytes", LIMIT, clock=clock.now)
    first, first_told = holding(held, 3 * MIB)
    clock.advance(1)
    _, second_told = holding(held, 3 * MIB)
    clock.advance(GRACE_SECONDS)
    late = held.account()
    assert late.add(4 * MIB)
    assert (first_told, second_told) == (["give way"], [])
    assert (first.closed, first.size, held.used) == (True, 0, 7 * MIB)
    assert not first.add(1)


def test_a_holder_never_gives_way_to_itself():
    clock = ManualClock()
    held = BufferedBytes("bytes", LIMIT, clock=clock.now)
    account, told = holding(held, LARGE_LIMIT)
    clock.advance(10 * GRACE_SECONDS)
    assert not account.add(1)
    assert (account.size, told) == (LARGE_LIMIT, [])


def test_small_holders_have_room_of_their_own():
    held = BufferedBytes("bytes", LIMIT, clock=ManualClock().now)
    holding(held, LARGE_LIMIT)
    small = held.account()
    assert small.add(10_000)
    assert not small.add(MIB // 2)


def test_one_of_the_largest_size_fits_beside_nothing_else():
    held = BufferedBytes("bytes", 2 * 32 * MIB, clock=ManualClock().now)
    account = held.account()
    assert all(account.add(MIB) for _ in range(33))


class Ledger(RuleBasedStateMachine):
    """Accounts are opened, filled and emptied in any order, and give way to each other."""

    accounts = Bundle("accounts")

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.held = BufferedBytes("bytes", LIMIT, clock=self.clock.now)
        self.sizes: dict[Account, int] = {}

    @rule(target=accounts)
    def open(self) -> Account:
        account = self.held.account()
        self.sizes[account] = 0

        def drop() -> None:
            self.sizes[account] = 0

        account.on_evict = drop
        return account

    @rule(account=accounts, size=st.integers(0, 3 * MIB))
    def append(self, account: Account, size: int) -> None:
        if account.add(size):
            self.sizes[account] += size
            assert self.held.used <= LIMIT or size == 0

    @rule(account=accounts, size=st.integers(0, MIB))
    def hold_what_is_there(self, account: Account, size: int) -> None:
        account.put(size)
        self.sizes[account] += 0 if account.closed else size

    @rule(account=accounts, part=st.floats(0, 1))
    def let_go(self, account: Account, part: float) -> None:
        size = int(self.sizes[account] * part)
        account.put(-size)
        self.sizes[account] -= size

    @rule(account=consumes(accounts), twice=st.booleans())
    def end(self, account: Account, *, twice: bool) -> None:
        account.close()
        if twice:
            account.close()
        del self.sizes[account]

    @rule(account=accounts)
    def be_refused(self, account: Account) -> None:
        account.evict()
        assert not account.add(1)

    @rule(seconds=st.floats(0, 2 * GRACE_SECONDS))
    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @invariant()
    def every_byte_is_on_an_account(self) -> None:
        assert self.held.used == sum(self.sizes.values()) == sum(account.size for account in self.sizes)

    def teardown(self) -> None:
        for account in self.sizes:
            account.close()
        assert self.held.used == 0


TestLedger = Ledger.TestCase
