# SPDX-License-Identifier: Apache-2.0
"""Two pickers, each behind a real Envoy, under load: no request is lost, whatever the server of their state does."""

import time
from contextlib import AsyncExitStack
from functools import partial

import msgspec
import pytest

from epp.lab.sim.server import running
from perf.bench.run_shared import FAULTS, proxied, shares
from tests.shared_state.test_gateways import PROMPT, ask, grown, healthy
from tests.support.gateways import Gateway, gateway_of
from tests.support.load import load_on
from tests.support.waiting import until
from tests.support.world import FAST, pool_of


@pytest.mark.parametrize("fault", FAULTS)
async def test_no_request_is_lost(server, fault):
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(proxied(await server()))
        pool = pool_of({"a": await stack.enter_async_context(running(FAST))})
        flags = (f"--endpoints={pool}", f"--shared-state={store.url}")
        gateways = [await stack.enter_async_context(gateway_of(*flags)) for _ in range(2)]
        for each in gateways:
            await until(partial(shares, each), "state is shared")
        loads = [await stack.enter_async_context(load_on(each.url)) for each in gateways]
        begin, end = FAULTS[fault]
        begin(store)
        for each in gateways:
            await until(partial(has_problem, each), "it is known")
        moment = time.monotonic()
        for load in loads:
            await load.answered_after(moment)
        end(store)
        for each in gateways:
            await until(partial(shares, each), "state is shared again")
        moment = time.monotonic()
        for load in loads:
            await load.answered_after(moment)


async def has_problem(gateway: Gateway) -> bool:
    return "problem" in (await gateway.health())[1]["shared_state"]


async def test_map_of_the_caches_outlives_the_pickers_that_are_replaced_one_by_one(server):
    shared = await server()
    async with AsyncExitStack() as stack:
        named = {name: msgspec.structs.replace(FAST, name=name) for name in "abc"}
        sims = {name: await stack.enter_async_context(running(profile)) for name, profile in named.items()}
        flags = (f"--endpoints={pool_of(sims)}", f"--shared-state={shared.url}")
        old = [await stack.enter_async_context(AsyncExitStack()) for _ in range(2)]
        one, _ = [await each.enter_async_context(gateway_of(*flags)) for each in old]
        prompts = [f"{number} {PROMPT}" for number in range(6)]
        await healthy(one, connected=True)
        placed = [await ask(one, each) for each in prompts]
        await grown(one, "published_batches")  # a batch that was made after the requests
        new = []
        for each in old:
            new.append(await stack.enter_async_context(gateway_of(*flags)))
            await grown(new[-1], "applied_batches")  # the latest of another picker, so also the earlier ones
            await each.aclose()
        for gateway in new:
            assert [await ask(gateway, f"{each} and another end") for each in prompts] == placed
