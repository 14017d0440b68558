# SPDX-License-Identifier: Apache-2.0
"""CPU time of requests and of pieces of responses, behind a real Envoy with eight model servers."""

from contextlib import AbstractAsyncContextManager, AsyncExitStack

from report.samples import Samples
from rig.envoy import FEW_MESSAGES, FULL_DUPLEX
from rig.pickers import PickerKind
from rig.stand import Load, Loader, Stand, loader, stand

from rows.plan import Plan

SERVERS = 8
FEW = "few"
_WARM = Load(64)


def _cases(plan: Plan) -> dict[str, Load]:
    """Return the load of each row; the cost of a piece is what its run takes beyond that of its requests."""
    many = plan.scaled(1500, 100)
    return {
        "request-16": Load(many),
        "request-64": Load(many, connections=64),
        "request-320": Load(plan.scaled(960, 64), rate=320),
        "piece": Load(plan.scaled(32, 16), pieces=plan.scaled(300, 50)),
        "prompt-64k": Load(plan.scaled(400, 40), prompt_bytes=64 * 1024),
        "prompt-1m": Load(plan.scaled(60, 10), prompt_bytes=1024 * 1024, connections=4),
        "few-16": Load(many),
    }


async def measure(plan: Plan, samples: Samples) -> None:
    """Run all cases, so many rounds, each picker in its turn."""
    async with loader() as load, AsyncExitStack() as stack:
        stands = {kind: await stack.enter_async_context(_stand(load, kind)) for kind in plan.kinds}
        sent = 0
        for found in stands.values():
            await found.run(_WARM, sent)
            await found.run(_WARM, sent, FEW)
        sent += _WARM.requests
        for number in range(plan.rounds):
            plan.tell(f"wire, round {number + 1} of {plan.rounds}")
            idle = {kind: await found.idle_cores(plan.scaled(15, 5) / 10) for kind, found in stands.items()}
            for row, case in _cases(plan).items():
                for kind in plan.turns(number):
                    outcome = await stands[kind].run(case, sent, FEW if row.startswith(FEW) else "")
                    each = (outcome.cpu_seconds - idle[kind] * outcome.seconds) / outcome.requests * 1e6
                    if case.pieces:
                        each = (each - samples.of("request-16")[kind.name][-1]) / case.pieces
                    samples.add(row, kind.name, each)
                sent += case.requests


def _stand(load: Loader, kind: PickerKind) -> AbstractAsyncContextManager[Stand]:
    return stand(load, kind, servers=SERVERS, settings={"": FULL_DUPLEX, FEW: FEW_MESSAGES})
