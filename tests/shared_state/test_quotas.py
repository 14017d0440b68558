# SPDX-License-Identifier: Apache-2.0
"""Three pickers that share 200 quotas through a genuine server, with twice the requests that the quotas allow."""

import asyncio
import random
from contextlib import AsyncExitStack

from epp.admission.quotas import Blocked, Reservation
from epp.framework import SystemClock
from epp.framework.quotas import Quota
from tests.shared_state.streams import streaming
from tests.support.quotas import quota
from tests.support.waiting import until
from tests.unit.sharing.quota_pickers import QuotaPicker

PICKERS, REQUESTS, MINUTE, TOKENS = 3, 6, 6000, 100
SLICES = (PICKERS - 1) / PICKERS
"""Of a limit, the slices of two pickers: the most that a third one may not know."""
AT_ONCE = [f"at-once-{number}" for number in range(100)]
A_MINUTE = [f"a-minute-{number}" for number in range(100)]
QUOTAS: dict[str, Quota] = {
    **dict.fromkeys(AT_ONCE, quota(requests=REQUESTS)),
    **dict.fromkeys(A_MINUTE, quota(tokens_per_minute=MINUTE)),
}


class Clients:
    """Twice as many clients as requests are allowed at once, and tokens as fast as they are admitted."""

    def __init__(self, pickers: list[QuotaPicker], clock: SystemClock) -> None:
        self.pickers = pickers
        self.clock = clock
        self.chance = random.Random(1)
        self.under_way: dict[str, list[Reservation]] = {tenant: [] for tenant in AT_ONCE}
        self.most = dict.fromkeys(AT_ONCE, 0)
        self.tokens = dict.fromkeys(A_MINUTE, 0)
        self.began = clock.now()

    async def run(self, turns: int) -> None:
        for _ in range(turns):
            for tenant, mine in self.under_way.items():
                while mine and self.chance.random() < 0.3:
                    mine.pop(self.chance.randrange(len(mine))).release()
                for _ in range(2 * REQUESTS - len(mine)):
                    found = self.chance.choice(self.pickers).take(tenant)
                    if not isinstance(found, Blocked):
                        mine.append(found)
                self.most[tenant] = max(self.most[tenant], len(mine))
                assert len(mine) <= REQUESTS * (1 + SLICES)
            for tenant in A_MINUTE:
                for picker in self.pickers:
                    found = picker.take(tenant, prompt=TOKENS)
                    if not isinstance(found, Blocked):
                        self.tokens[tenant] += TOKENS
                        found.release()
                drained = (self.clock.now() - self.began) * MINUTE / 60
                assert self.tokens[tenant] <= MINUTE * (1 + SLICES) + drained
            await asyncio.sleep(0.01)


async def test_no_quota_is_exceeded_by_more_than_the_slices_with_and_without_the_server(server):
    shared, clock = await server(), SystemClock()
    pickers = [QuotaPicker(clock, QUOTAS) for _ in range(PICKERS)]
    async with AsyncExitStack() as stack:
        streams = [await stack.enter_async_context(streaming(picker.exchange, clock, shared.url)) for picker in pickers]

        async def are_connected(*, connected: bool) -> None:
            await until(lambda: all(each.is_connected is connected for each in streams), f"connected: {connected}")

        await until(lambda: all(each.exchange.peers == PICKERS - 1 for each in pickers), "each knows the others")
        clients = Clients(pickers, clock)
        await clients.run(40)
        assert min(clients.most.values()) >= REQUESTS  # the others' part is not lost
        assert min(clients.tokens.values()) >= MINUTE - TOKENS
        shared.kill()
        await are_connected(connected=False)
        await clients.run(25)
        shared.start()
        await are_connected(connected=True)
        await clients.run(25)
        for mine in clients.under_way.values():
            for each in mine:
                each.release()
        await until(
            lambda: not any(picker.used("total.max.workers.limit", tenant) for picker in pickers for tenant in AT_ONCE),
            "all know that no request is under way",
        )
        assert [picker.exchange.counts["refused"] for picker in pickers] == [0] * PICKERS
