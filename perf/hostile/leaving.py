# SPDX-License-Identifier: Apache-2.0
"""Behind a real Envoy: clients that disconnect at each phase, endless answers, and gateways that fail open."""

import asyncio

from epp.lab.gateway.settings import FailureMode
from perf.hostile.behind_envoy import behind_envoy
from perf.hostile.scene import HERE, NARROW, Campaign, attack_with, flat, settled
from perf.hostile.visitors import PHASES
from perf.rig.processes import Program


async def leaving_clients(campaign: Campaign) -> None:
    """Clients that disconnect at each phase of their request, one phase after the other."""
    count = campaign.of(500, 40)
    async with behind_envoy(campaign) as behind:
        picker = behind.scene
        host, port = behind.address
        for phase in PHASES:
            said = await picker.attack("visitors", "leave", host=host, port=port, phase=phase, count=count)
            campaign.judge.exactly(f"left {phase}", said["left"], count)
            left = await settled(picker.under_way)
            campaign.judge.exactly("  left in streams, queues and ledger", left or "nothing", "nothing")
        async with picker.beside() as seen:
            await asyncio.sleep(1)
        picker.judge_beside(seen, longest=None)
        said = await picker.attack("visitors", "load", host=host, port=port, seconds=2, clients=4)
        campaign.judge.exactly("statuses of those who stay", sorted(said["statuses"]), ["200"])
        await picker.judge_rest()


async def leaving_the_queue(campaign: Campaign) -> None:
    """Clients that disconnect while their requests wait in a queue behind four long ones."""
    count = campaign.of(400, 60)
    async with behind_envoy(campaign, config=NARROW) as behind:
        picker = behind.scene
        host, port = behind.address
        said = await picker.attack("visitors", "leave", host=host, port=port, phase="with the body", count=count)
        campaign.judge.exactly("left with their bodies, most of them queued", said["left"], count)
        await picker.judge_rest()
        said = await picker.attack("visitors", "load", host=host, port=port, seconds=2, clients=4)
        campaign.judge.exactly("statuses of those who come then", sorted(said["statuses"]), ["200"])


async def endless_answers(campaign: Campaign) -> None:
    """1,000 endless streamed answers: memory stays constant, and is released after them."""
    count, seconds = campaign.of(1_000, 200), campaign.of(120, 8)
    async with await Program.run(HERE / "attacker.py") as server:
        address = f"127.0.0.1:{(await attack_with(server, 'bad_servers', 'serve'))['port']}"
        async with behind_envoy(campaign, servers=[address]) as behind:
            picker = behind.scene
            host, port = behind.address
            async with picker.beside() as seen:
                said = await picker.attack("visitors", "open_endless", host=host, port=port, count=count)
                campaign.judge.exactly("answers that began", said["begun"], count)
                await asyncio.sleep(2)
                first = await flat(picker.now, 2)
                await asyncio.sleep(seconds)
                last = await flat(picker.now, 2)
                said = await picker.attack("visitors", "close_endless")
            campaign.judge.exactly("answers that came to their end", said["going"], count)
            campaign.judge.at_most(
                f"memory grown in {seconds} s of them", last.resident_mib - first.resident_mib, 8, "MiB"
            )
            picker.judge_beside(seen, longest=None)
            await picker.judge_rest()


async def failing_open(campaign: Campaign) -> None:
    """A gateway that fails open: each client gets an answer while the picker is attacked."""
    seconds = campaign.of(60, 8)
    async with behind_envoy(campaign, failure_mode=FailureMode.FAIL_OPEN) as behind:
        picker = behind.scene
        host, port = behind.address
        clients, attacked = await picker.new_attacker(), picker.served.grpc_port
        async with picker.beside() as seen, asyncio.TaskGroup() as group:
            asked = group.create_task(
                attack_with(clients, "visitors", "load", host=host, port=port, seconds=seconds, clients=4)
            )
            while not asked.done():
                await picker.attack("floods", "reset_rapidly", port=attacked, count=2_000)
                await picker.attack("endings", "send_malformed", port=attacked, count=400, seed=2)
                await picker.attack("visitors", "leave", host=host, port=port, phase="in the body", count=40)
        statuses = asked.result()["statuses"]
        campaign.judge.at_least("requests answered with 200", statuses.pop("200", 0), 20)
        campaign.judge.exactly("answered otherwise", statuses or "none", "none")
        picker.judge_beside(seen, longest=None)
        await picker.judge_rest()
