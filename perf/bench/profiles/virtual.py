# SPDX-License-Identifier: Apache-2.0
"""Workloads in virtual time, with bodies as clients send them."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from epp.config import LoadedConfig
from epp.lab.replay.fleet import TRANSFER_SECONDS_PER_TOKEN, ReplayOptions
from epp.lab.replay.outcome import Outcome as Replayed
from epp.lab.replay.outcome import Status
from epp.lab.replay.simulation import Simulation
from epp.lab.replay.traffic import Arrival
from epp.lab.sim.profile import SimProfile
from epp.lab.sim.work import SimRequest
from perf.bench.profiles.fleets import Fleet
from perf.bench.profiles.outcome import TIMEOUT_SECONDS, Outcome, Served
from perf.bench.profiles.workloads import MODEL, Trace

_HEADERS = {":method": "POST", "content-type": "application/json", "x-llm-d-inference-fairness-id": "team-a"}
"""Headers of a tenant that may use the whole pool, in the ready-made file with quotas."""


class CallArrival(Arrival):
    """A request of a workload."""

    def __init__(self, number: int, trace: Trace) -> None:
        self._number, self._trace = number, trace
        self._call = call = trace.calls[number]
        self.at, self.body, self.session = call.at, call.body, call.session
        self.model, self.tenant = MODEL, call.group
        self.headers = {**_HEADERS, ":path": call.path, "x-request-id": f"r{number}"}
        request = trace.plan(number).request
        self.prompt_tokens, self.output_tokens = request.prompt_tokens, request.output_tokens

    def work(self, profile: SimProfile) -> SimRequest:
        """Return the work for an engine."""
        return self._trace.plan(self._number, profile.block_size).request

    def token_ids(self) -> NDArray[np.uint32]:
        """Return the token ids of the prompt, and unique ones for the answer."""
        return np.array([*self._call.prompt_ids, *range(self.output_tokens)], dtype=np.uint32)


class _Calls:
    def __init__(self, trace: Trace) -> None:
        self._trace = trace

    def __iter__(self) -> Iterator[Arrival]:
        return (CallArrival(number, self._trace) for number in range(len(self._trace.calls)))


def simulate(config: LoadedConfig, fleet: Fleet, trace: Trace) -> Outcome:
    """Return the outcome of the requests."""
    with tempfile.TemporaryDirectory(prefix="epp-bench-") as directory:
        path = Path(directory) / "objects.yaml"
        path.write_text(fleet.objects)
        return _simulate(config, fleet, trace, (str(path),) if fleet.objects else ())


def _simulate(config: LoadedConfig, fleet: Fleet, trace: Trace, objects: tuple[str, ...]) -> Outcome:
    options = ReplayOptions(
        objects=objects,
        regret_every=0,
        timeout_seconds=TIMEOUT_SECONDS * trace.slowness,
        pickers=fleet.pickers,
        page_seconds=fleet.page_seconds,
        transfer_seconds_per_token=TRANSFER_SECONDS_PER_TOKEN * trace.slowness,
    )
    found = Simulation(config, fleet.simulated, _Calls(trace), options).run()
    return Outcome(
        seconds=trace.seconds,
        served=tuple(_served(found)),
        dollars=float(found.dollars_of_servers.sum()),
        target=trace.target,
        busy=dict(zip(found.servers, found.busy_seconds.tolist(), strict=True)),
        adapter_loads=found.adapter_loads,
    )


def _served(found: Replayed) -> Iterator[Served]:
    columns = found.columns
    for number, status in enumerate(columns.status.tolist()):
        server, ttft, total = (getattr(columns, name)[number].item() for name in ("server", "ttft", "total"))
        served = Served(
            columns.at[number].item(),
            found.servers[server] if server >= 0 else "",
            refused=status == Status.REFUSED,
            group=found.tenants[columns.tenant[number]],
        )
        if ttft == ttft:  # noqa: PLR0124  not NaN
            served.ttft = ttft
        if status == Status.SERVED:
            served.tpot = (total - ttft) / max(1, columns.output_tokens[number].item() - 1)
            served.prompt_tokens = columns.prompt_tokens[number].item()
            served.cached_tokens = columns.cached_tokens[number].item()
        yield served
