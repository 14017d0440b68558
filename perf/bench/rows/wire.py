# SPDX-License-Identifier: Apache-2.0
"""CPU time of requests and of pieces of responses, behind a real Envoy with eight model servers."""

from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import replace

from perf.bench.report.samples import Samples
from perf.bench.rows.plan import Plan
from perf.rig.envoy import FEW_MESSAGES, FULL_DUPLEX
from perf.rig.pickers import PickerKind
from perf.rig.stand import Load, Loader, Stand, stand

SERVERS = 8
_FEW, _LOGGED = "few", "logged"
_MODES = {"": FULL_DUPLEX, _FEW: FEW_MESSAGES}
_REQUESTS = ("request-16", "few-16")
"""Rows of the same requests without a stream, whose figures are deducted from those of streams."""
_WARM = Load(64)
_ROUNDS, _SECONDS = 8, 160.0


def _cases(plan: Plan) -> dict[str, Load]:
    """Return the load of each row; the cost of a piece is that of its run minus that of the requests."""
    many = Load(plan.scaled(800, 100))
    stream = Load(plan.scaled(32, 16), pieces=plan.scaled(300, 50))
    return {
        "request-16": many,
        "request-64": replace(many, connections=64),
        "request-320": Load(plan.scaled(640, 64), rate=320),
        "piece": stream,
        "prompt-64k": Load(plan.scaled(200, 40), prompt_bytes=64 * 1024),
        "prompt-1m": Load(plan.scaled(40, 10), prompt_bytes=1024 * 1024, connections=4),
        "few-16": many,
        "few-stream": stream,
        "logged-16": many,
    }


async def measure(plan: Plan, samples: Samples) -> None:
    """Run all cases for a number of rounds, one picker after the other."""
    async with plan.loader() as load, AsyncExitStack() as stack:
        stands = [await stack.enter_async_context(_stand(load, kind)) for kind in plan.kinds]
        logger = plan.kinds[0]
        if logger.ours:
            logger = replace(logger, command=f"{logger.command} --request-log-sample=0")
        logging = await stack.enter_async_context(stand(load, logger, servers=SERVERS, verbosity=2))
        sent = 0
        requests: dict[tuple[Stand, str], tuple[float, float]] = {}
        for found in stands:
            for mode in _MODES:
                await found.served(_WARM, sent, mode)
        await logging.served(_WARM, sent)
        sent += _WARM.requests
        for number in plan.rounds_of("wire", _ROUNDS, seconds=_SECONDS):
            idle = {found: await found.idle_cores(plan.scaled(10, 5) / 10) for found in (*stands, logging)}
            for row, case in _cases(plan).items():
                for found in [logging] if row.startswith(_LOGGED) else plan.turns(stands, number):
                    mode = _FEW if row.startswith(_FEW) else ""
                    outcome = await found.served(case, sent, mode)
                    each = (outcome.cpu_seconds - idle[found] * outcome.seconds) / outcome.requests * 1e6
                    messages = outcome.messages / outcome.requests
                    if row in _REQUESTS:
                        requests[found, mode] = each, messages
                    elif case.pieces:
                        request, without = requests[found, mode]
                        # Envoy may read two pieces as one; with few messages, it reports none.
                        each = (each - request) / (messages - without if mode != _FEW else case.pieces)
                    samples.add(row, found.name, each)
                sent += case.requests


def _stand(load: Loader, kind: PickerKind) -> AbstractAsyncContextManager[Stand]:
    return stand(load, kind, servers=SERVERS, settings=_MODES)
