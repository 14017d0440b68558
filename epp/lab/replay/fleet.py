# SPDX-License-Identifier: Apache-2.0
"""The fleet of a replay: servers with their profiles and prices, and simulated engines."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Self

from epp.framework import ConfigurationError, Endpoint, SystemClock
from epp.framework.accelerators.tag import AcceleratorTag
from epp.framework.registry import Registry
from epp.framework.suggestions import hint_at
from epp.hardware.tagger import AcceleratorTagger
from epp.lab.sim.machine import Machine
from epp.lab.sim.profile import PRESETS, SimProfile, find_preset, find_server_profile
from epp.pool.discovery.endpoints_file import FileDiscovery, FileDiscoveryParameters


class Page(NamedTuple):
    """The metrics page of a server at one time."""

    profile: SimProfile
    load: tuple[int, int, float]
    """Running requests, waiting requests and KV usage."""
    running_adapters: tuple[str, ...] = ()
    waiting_adapters: tuple[str, ...] = ()

    @classmethod
    def of(cls, engine: Machine) -> Self:
        adapters = (engine.running_adapters, engine.waiting_adapters) if engine.profile.lora_adapters else ()
        return cls(engine.profile, engine.gauges(), *adapters)

    def renewed(self, engine: Machine) -> "Page":
        """Return the current page; the same object if nothing has changed."""
        current = Page.of(engine)
        return self if current == self else current

    @property
    def text(self) -> bytes:
        (running, waiting, kv_usage), profile = self.load, self.profile
        labels = 'engine="0",model_name="m"'
        adapters = ""
        if profile.lora_adapters:
            names = ",".join(self.running_adapters), ",".join(self.waiting_adapters)
            shown = f'running_lora_adapters="{names[0]}",waiting_lora_adapters="{names[1]}"'
            adapters = f'vllm:lora_requests_info{{max_lora="{profile.max_lora}",{shown}}} 1.0\n'
        return (
            f"vllm:num_requests_running{{{labels}}} {running}.0\n"
            f"vllm:num_requests_waiting{{{labels}}} {waiting}.0\n"
            f"vllm:kv_cache_usage_perc{{{labels}}} {kv_usage!r}\n"
            f'vllm:cache_config_info{{block_size="{profile.block_size}",num_gpu_blocks="{profile.num_gpu_blocks}"}} '
            f"1.0\n{adapters}"
        ).encode()


def simulated(profile: SimProfile) -> Machine:
    """Return an engine that emits the first and the last token of each request."""
    return Machine(profile, every_token=False)


PAGE_SECONDS = 0.002
"""Seconds from the writing of a metrics page to the datastore."""
HOP_SECONDS = 0.001
"""Seconds from the picker to a server, and back; also from one server to another."""
JITTER_SECONDS = 0.005
"""Maximum random delay of a request with seeds other than 0: a few milliseconds can change all later picks."""
TRANSFER_SECONDS_PER_TOKEN = 128 * 1024 / 10e9
"""KV cache of a model with 8 billion parameters (128 KiB per token) over a network of 10 GB/s."""
UNKNOWN_CLASS = "unknown"
ROLE_LABEL = "llm-d.ai/role"
_OTHER_ROLES = frozenset({"prefill", "encode", "encode-prefill"})


@dataclass(frozen=True, kw_only=True)
class ReplayOptions:
    """Options of the replay of a trace; times are in seconds of virtual time."""

    seed: int = 0
    """Seed of the pickers' random choices, the phases of polls and the delays of requests."""
    rate_scale: float = 1.0
    """Factor on the request rate."""
    limit: int | None = None
    duration: float | None = None
    """Time after which requests are left out."""
    timeout_seconds: float = 60.0
    """Time after which clients without a first token disconnect."""
    pickers: int = 1
    share_seconds: float | None = None
    """Delay of shared state between pickers; None if each picker sees only its own requests."""
    poll_seconds: float = 0.05
    """Shortest interval between polls."""
    page_seconds: float = 0.0
    """Time for which a metrics page is cached; 0 for no cache."""
    transfer_seconds_per_token: float = TRANSFER_SECONDS_PER_TOKEN
    """Time to transfer the KV cache from a prefill server to a decode server, or to one that copies it."""
    regret_every: int = 4
    """Compute the regret of every nth routed request, of fewer with more than 16 servers; 0 for none."""
    report_seconds: float = 10.0
    objects: tuple[str, ...] = ()
    """Files or directories with objects of the cluster: objectives, rewrites, and inputs of plugins."""
    experimental: bool = False
    """Whether plugins may be alpha."""
    plugin_modules: tuple[str, ...] = ()


@dataclass(frozen=True)
class Server:
    endpoint: Endpoint
    profile: SimProfile
    dollars_per_hour: float | None = None
    accelerator_class: str = UNKNOWN_CLASS
    network_seconds: float = 0.0
    """One-way network delay to the server, in addition to the network of the local cluster."""
    make: Callable[[SimProfile], Machine] = field(default=simulated, repr=False)
    """Not in `repr`, which a study of `epp tune` compares: that of a function differs in each process."""

    def may_answer(self, tokens: int) -> bool:
        """Return whether the server can answer a request with this number of tokens; prefill servers cannot."""
        return tokens <= self.profile.max_model_len and self.endpoint.labels.get(ROLE_LABEL) not in _OTHER_ROLES


@dataclass(frozen=True)
class Fleet:
    servers: tuple[Server, ...]

    @property
    def endpoints(self) -> list[Endpoint]:
        return [server.endpoint for server in self.servers]


def load_fleet(path: Path, profiles: Sequence[str] = (), *, prices: Path | None = None) -> Fleet:
    """Return the servers of an endpoint list, as `file-discovery` reads it; raises ConfigurationError.

    Each of `profiles` is `KEY=PRESET` or `KEY=FILE`; KEY is the name of an endpoint or an accelerator class. The
    default is the preset with the name of the class.
    """
    endpoints = FileDiscovery(FileDiscoveryParameters(path=str(path)), clock=SystemClock()).listed()
    if not endpoints:
        raise ConfigurationError(f"endpoints file {path} has no endpoints: list at least one")
    given = dict(map(_named_profile, profiles))
    parameters = {} if prices is None else {"prices": str(prices)}
    registry = Registry()
    tagger = registry.build(AcceleratorTagger.plugin_type, parameters, name="replay", clock=SystemClock())
    assert isinstance(tagger, AcceleratorTagger)  # noqa: S101
    tags = [tagger.merged(endpoint).tag for endpoint in endpoints]
    keys = {key for endpoint, tag in zip(endpoints, tags, strict=True) for key in _keys(endpoint, tag)}
    for key in given:
        if key not in keys:
            raise ConfigurationError(f"--profile: no endpoint or accelerator class {key!r}; {hint_at(key, keys)}")
    return Fleet(
        tuple(
            Server(
                endpoint,
                _profile_of(endpoint, tag, given),
                tag.cost_per_hour(),
                next(iter(_keys(endpoint, tag)[1:]), tag.model or UNKNOWN_CLASS),
            )
            for endpoint, tag in zip(endpoints, tags, strict=True)
        )
    )


def _keys(endpoint: Endpoint, tag: AcceleratorTag) -> list[str]:
    """Return the keys of `--profile` that match an endpoint, most specific first."""
    declared = endpoint.accelerator
    declared_class = "" if declared is None else declared.accelerator_class
    classes = dict.fromkeys((*tag.classes, tag.primary_class, declared_class, tag.product, tag.model))
    part = tag.partition.profile
    names = [f"{name}-{part}" for name in classes if name and part]
    return [endpoint.name, *names, *filter(None, classes)]


def _profile_of(endpoint: Endpoint, tag: AcceleratorTag, given: Mapping[str, SimProfile]) -> SimProfile:
    keys = _keys(endpoint, tag)
    for key in keys:
        if (found := given.get(key) or find_preset(key)) is not None:
            return found
    known = keys[1] if len(keys) > 1 else endpoint.name
    raise ConfigurationError(
        f"endpoint {endpoint.name!r} has no server profile",
        remedy=f"give --profile {known}=PRESET, with {', '.join(PRESETS)} or another accelerator, or "
        f"--profile {known}=FILE",
    )


def _named_profile(text: str) -> tuple[str, SimProfile]:
    key, _, name = text.partition("=")
    if not key or not name:
        raise ConfigurationError(f"--profile: {text!r} is not KEY=PRESET or KEY=FILE")
    return key, find_server_profile(name, "--profile")
