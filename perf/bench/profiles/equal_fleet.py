# SPDX-License-Identifier: Apache-2.0
"""Six equal servers, ten workloads and the profiles that suit them."""

import random
from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType

import msgspec

from epp.config import LoadedConfig, load_text
from epp.config.load import sample_texts
from epp.framework import Endpoint
from epp.framework.accelerators.tag import AcceleratorDeclaration
from epp.lab.replay.fleet import Fleet, ReplayOptions, Server
from epp.lab.replay.outcome import Outcome
from epp.lab.replay.simulation import Simulation
from epp.lab.replay.traffic import TraceTraffic
from epp.lab.sim.profile import PRESETS, SimProfile
from epp.lab.traces.making import WORKLOADS as PUBLISHED_WORKLOADS
from epp.lab.traces.making import MadeTrace, Spread, Workload
from epp.lab.traces.trace import Trace, TraceRequest
from perf.bench.profiles.engines import MAKES

_SERVERS = 6
_LONGEST = 65_536
_MODEL = "m"
_ADAPTERS = tuple(f"adapter-{number}" for number in range(24))
_BATCH = 64
"""Maximum requests that share a step in the computation of capacity."""
_SAMPLE_SECONDS, _SAMPLE_RATE = 120.0, 20.0
_WARM_UP_SHARE = 0.2
"""Share of the requests that are not counted, at the start: caches are empty and little is learned."""
_DEFAULT_OPTIONS = ReplayOptions()
_CHAT = Workload(
    first=Spread(300, 0.8),
    more=Spread(250, 0.8),
    output=Spread(150, 0.6),
    calls=5,
    pause=Spread(5, 0.5),
    prefixes=8,
    prefix_tokens=640,
    most_tokens=16_000,
)
WORKLOADS: Mapping[str, Workload] = MappingProxyType(
    {
        "chats": _CHAT,
        "bursts": replace(_CHAT, calls=3, prefix_tokens=1024, burstiness=5.0),
        "long-sessions": replace(
            _CHAT,
            first=Spread(1500, 0.7),
            more=Spread(400, 0.7),
            calls=8,
            pause=Spread(15, 0.6),
            prefixes=1,
            prefix_tokens=256,
        ),
        "hot-prefixes": Workload(
            first=Spread(200, 0.7), output=Spread(100, 0.7), prefixes=6, prefix_tokens=4096, most_tokens=16_000
        ),
        "agents": Workload(
            first=Spread(1000, 0.8),
            more=Spread(500, 0.9),
            output=Spread(120, 0.9),
            calls=20,
            pause=Spread(4, 0.8),
            idle=Spread(30, 1.0),
            prefixes=5,
            prefix_tokens=6144,
            most_tokens=48_000,
        ),
        "long-and-short": Workload(
            first=Spread(400, 1.5), output=Spread(120, 0.9), has_blocks=False, most_tokens=24_000
        ),
        "azure-code": replace(PUBLISHED_WORKLOADS["azure-code"], most_tokens=16_000),
        "azure-conv": replace(PUBLISHED_WORKLOADS["azure-conv"], most_tokens=16_000),
        "mooncake": replace(PUBLISHED_WORKLOADS["mooncake"], most_tokens=48_000),
        "adapters": Workload(first=Spread(400, 0.7), output=Spread(100, 0.6), has_blocks=False, most_tokens=16_000),
    }
)
_HEAD = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\nplugins:\n"
_PUBLISHED: Mapping[str, Mapping[str, int]] = MappingProxyType(
    {
        "llm-d-optimized-baseline": {
            "queue-scorer": 2, "kv-cache-utilization-scorer": 2, "prefix-cache-scorer": 3, "no-hit-lru-scorer": 2,
        },
        "llm-d-active-requests": {
            "active-request-scorer": 4, "kv-cache-utilization-scorer": 2, "prefix-cache-scorer": 2,
            "no-hit-lru-scorer": 2,
        },
        "llm-d-token-load": {"prefix-cache-affinity-filter": 0, "token-load-scorer": 1},
    }
)  # fmt: skip
"""Published profiles of llm-d in addition to the default: plugins with the weights of scorers. The second one is for
precise prefixes, here with approximate ones."""
READY_MADE = (
    *("adaptive", "llm-d-default", "heterogeneous-latency", "least-loaded"),
    *("lora-dense", "prefix-heavy", "round-robin", "session-sticky"),
)
"""Ready-made profiles that do not require labels or objects."""
PROFILES = (*READY_MADE, *_PUBLISHED)


def profile(name: str) -> LoadedConfig:
    """Return the configuration of one of the profiles."""
    if name not in _PUBLISHED:
        return load_text(sample_texts()[name], name)
    plugins = _PUBLISHED[name]
    types = "".join(f"- type: {kind}\n" for kind in plugins)
    references = "".join(
        f"  - {{pluginRef: {kind}{f', weight: {weight}' if weight else ''}}}\n" for kind, weight in plugins.items()
    )
    return load_text(f"{_HEAD}{types}schedulingProfiles:\n- name: default\n  plugins:\n{references}", name)


def run(
    workload: str,
    config: str | LoadedConfig,
    *,
    load: float,
    make: str,
    seed: int,
    requests: int,
    options: ReplayOptions = _DEFAULT_OPTIONS,
) -> Outcome:
    """Return the outcome of one replay at a share of the capacity, with a profile by name or another configuration."""
    loaded = profile(config) if isinstance(config, str) else config
    servers = _profiles(workload, make)
    rate = load * _requests_per_second(workload)
    made: Trace = MadeTrace(WORKLOADS[workload], rate=rate, seconds=requests / rate, seed=seed)
    trace = _OfAdapters(made, seed) if workload == "adapters" else made
    a100 = AcceleratorDeclaration(accelerator_class="a100-40gb", count=1, cost_per_hour=2.00)
    fleet = Fleet(
        tuple(
            Server(
                Endpoint(server.name, f"10.0.0.{number}", 8000, accelerator=a100),
                server,
                a100.cost_per_hour,
                make=MAKES[make].engine,
            )
            for number, server in enumerate(servers, 1)
        )
    )
    found = Simulation(loaded, fleet, TraceTraffic(trace), replace(options, seed=seed)).run()
    begin = _WARM_UP_SHARE * found.seconds
    counted = found.take(found.columns.at >= begin)
    columns = replace(counted.columns, at=counted.columns.at - begin)
    return replace(counted, columns=columns, seconds=found.seconds - begin)


class _OfAdapters:
    """The requests of a trace, each for an adapter; the nth adapter is n times less frequent."""

    def __init__(self, trace: Trace, seed: int) -> None:
        self._trace, self._seed = trace, seed
        self.name, self.block_tokens = trace.name, trace.block_tokens

    def __iter__(self) -> Iterator[TraceRequest]:
        generator = random.Random(self._seed)
        weights = [1 / rank for rank in range(1, len(_ADAPTERS) + 1)]
        for request in self._trace:
            yield msgspec.structs.replace(request, model=generator.choices(_ADAPTERS, weights)[0])


def _profiles(workload: str, make: str) -> list[SimProfile]:
    server = msgspec.structs.replace(PRESETS["a100"], model=_MODEL, max_model_len=_LONGEST)
    if workload == "adapters":
        server = msgspec.structs.replace(server, lora_adapters=_ADAPTERS, max_lora=4, lora_load_seconds=0.5)
    adapted = MAKES[make].adapt(server)
    return [msgspec.structs.replace(adapted, name=f"a100-{number}") for number in range(_SERVERS)]


def _requests_per_second(workload: str) -> float:
    """Return the rate that the fleet serves if all known blocks are cached and all servers are always busy."""
    trace = MadeTrace(WORKLOADS[workload], rate=_SAMPLE_RATE, seconds=_SAMPLE_SECONDS, seed=1)
    known: set[int] = set()
    uncached = output = kv_tokens = count = 0
    for request in trace:
        new = set(request.blocks) - known
        known |= new
        uncached += max(1, request.prompt_tokens - (len(request.blocks) - len(new)) * trace.block_tokens)
        output += request.output_tokens
        kv_tokens += request.prompt_tokens + request.output_tokens
        count += 1
    server = PRESETS["a100"]
    batch = max(1.0, min(_BATCH, server.block_size * server.num_gpu_blocks / (kv_tokens / count)))
    step = server.seconds_per_output_token * (1 + server.batch_slope * (batch - 1))
    seconds = uncached / count / server.prefill_tokens_per_second + output / count * step / batch
    return _SERVERS / seconds
