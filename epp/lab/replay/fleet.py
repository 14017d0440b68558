# SPDX-License-Identifier: Apache-2.0
"""A replayed fleet: which servers, how they are loaded, and what happens to them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from epp.framework import ConfigurationError, Endpoint, SystemClock
from epp.framework.accelerators.tag import AcceleratorTag
from epp.framework.messages import hint_at
from epp.framework.registry import Registry
from epp.hardware.tagger import AcceleratorTagger
from epp.lab.replay.engines import Engine, Simulated
from epp.lab.sim.profile import PRESETS, SimProfile, find_preset, find_server_profile
from epp.pool.discovery.endpoints_file import FileDiscovery, FileDiscoveryParameters

PAGE_SECONDS = 0.002
"""From the writing of a metrics page to the datastore."""
HOP_SECONDS = 0.001
"""From the picker to a server, and back; also from one server to another."""
JITTER_SECONDS = 0.005
"""Longest delay of a request, with seeds other than 0: a few milliseconds can change all later picks."""
TRANSFER_SECONDS_PER_TOKEN = 128 * 1024 / 10e9
"""The KV cache of a model with 8 billion parameters, 128 KiB for each token, over a network of 10 GB/s."""
UNKNOWN_CLASS = "unknown"
ROLE_LABEL = "llm-d.ai/role"
_OTHER_ROLES = frozenset({"prefill", "encode", "encode-prefill"})


@dataclass(frozen=True, kw_only=True)
class ReplayOptions:
    """How the requests of a trace are replayed; times are in seconds of virtual time."""

    seed: int = 0
    """Of the random choices of pickers, the phases of polls and the delays of requests."""
    rate_scale: float = 1.0
    """2 sends the requests twice as fast."""
    limit: int | None = None
    """Most requests."""
    duration: float | None = None
    """Requests that arrive later are left out."""
    timeout_seconds: float = 60.0
    """Clients leave that have no first token by then."""
    pickers: int = 1
    """Pickers side by side."""
    share_seconds: float | None = None
    """Time that a batch of shared state takes to the other pickers; None where each sees only its own requests."""
    poll_seconds: float = 0.05
    """Fastest interval of polls."""
    page_seconds: float = 0.0
    """Time for which metrics pages stay as they are, as behind a cache; 0 for pages of the moment."""
    transfer_seconds_per_token: float = TRANSFER_SECONDS_PER_TOKEN
    """Of the KV cache, from a prefill server to a decode server, or to one that copies it."""
    regret_every: int = 4
    """The regret of every fourth routed request is computed, of fewer on more than 16 servers; 0 for none."""
    report_seconds: float = 10.0
    """Interval of reports of progress."""
    objects: tuple[str, ...] = ()
    """Files or directories with objects of the cluster: objectives, rewrites, and inputs of plugins."""
    experimental: bool = False
    """Whether plugins may be alpha."""
    plugin_modules: tuple[str, ...] = ()
    """Modules with further plugins."""


@dataclass(frozen=True)
class Server:
    endpoint: Endpoint
    profile: SimProfile
    dollars_per_hour: float | None = None
    """None without a price."""
    accelerator_class: str = UNKNOWN_CLASS
    network_seconds: float = 0.0
    """To it or back, beyond the network of the local cluster."""
    make: Callable[[SimProfile], Engine] = Simulated

    def may_answer(self, tokens: int) -> bool:
        """Return whether a request of so many tokens can be answered here: servers for prompts alone answer none."""
        return tokens <= self.profile.max_model_len and self.endpoint.labels.get(ROLE_LABEL) not in _OTHER_ROLES


@dataclass(frozen=True)
class Fleet:
    servers: tuple[Server, ...]

    @property
    def endpoints(self) -> list[Endpoint]:
        """The endpoints, in the order of the servers."""
        return [server.endpoint for server in self.servers]


def load_fleet(path: Path, profiles: Sequence[str] = (), *, prices: Path | None = None) -> Fleet:
    """Return the servers of an endpoint list, as `file-discovery` reads it; raises ConfigurationError.

    Each of `profiles` is `KEY=PRESET` or `KEY=FILE`, where KEY is the name of an endpoint or an accelerator class. By
    default, the preset with the name of the class counts.
    """
    endpoints = FileDiscovery(FileDiscoveryParameters(path=str(path)), clock=SystemClock()).listed()
    if not endpoints:
        raise ConfigurationError(f"endpoints file {path} has no endpoints: list at least one")
    given = dict(map(_named_profile, profiles))
    parameters = {} if prices is None else {"prices": str(prices)}
    registry = Registry()
    tagger = registry.build(AcceleratorTagger.plugin_type, parameters, name="replay", clock=SystemClock())
    assert isinstance(tagger, AcceleratorTagger)  # noqa: S101  by its plugin type
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
    """Return the names by which profiles may be given to an endpoint, the closest first."""
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
