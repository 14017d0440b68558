# SPDX-License-Identifier: Apache-2.0
"""Traces and fleets of replays."""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from epp.config import LoadedConfig, load_text
from epp.config.load import sample_texts
from epp.framework import Endpoint
from epp.lab.replay.fleet import Fleet, Server
from epp.lab.sim.profile import PRESETS, SimProfile
from epp.lab.traces.trace import TraceRequest

BLOCK = 64


class ListTrace:
    """A trace in memory."""

    name = "list"
    block_tokens = BLOCK

    def __init__(self, requests: Sequence[TraceRequest]) -> None:
        self.requests = requests

    def __iter__(self) -> Iterator[TraceRequest]:
        return iter(self.requests)


def requests(rate: float, seconds: float, *, seed: int = 1) -> list[TraceRequest]:
    """Return requests that share one of four prefixes of 512 tokens, of two tenants."""
    generator = random.Random(seed)
    found, at = [], 0.0
    while (at := at + generator.expovariate(rate)) < seconds:
        tokens = 512 + generator.randint(64, 1500)
        shared, own = generator.randrange(4) * 100, 1000 * (len(found) + 1)
        blocks = [*range(shared, shared + 8), *range(own, own + (tokens - 512) // BLOCK)]
        found.append(
            TraceRequest(
                at=at,
                prompt_tokens=tokens,
                output_tokens=generator.randint(10, 120),
                tenant=generator.choice(["team-a", "team-b"]),
                blocks=tuple(blocks),
            )
        )
    return found


def fleet(*presets: str | SimProfile) -> Fleet:
    """Return servers of these presets, at $1 an hour."""
    servers = []
    for number, preset in enumerate(presets):
        profile = PRESETS[preset] if isinstance(preset, str) else preset
        name = preset if isinstance(preset, str) else profile.name
        servers.append(Server(Endpoint(f"s{number}", f"10.0.0.{number + 1}", 8000), profile, 1.0, name))
    return Fleet(tuple(servers))


def with_roles(servers: Fleet, *roles: str) -> Fleet:
    """Return these servers with the roles of disaggregated serving."""
    labelled = (
        replace(one.endpoint, labels={"llm-d.ai/role": role}) for one, role in zip(servers.servers, roles, strict=True)
    )
    return Fleet(tuple(replace(one, endpoint=each) for one, each in zip(servers.servers, labelled, strict=True)))


def config(text: str) -> LoadedConfig:
    """Return a ready-made configuration, or the one in a text."""
    return load_text(sample_texts().get(text, text), "test")


@pytest.fixture
def endpoints_file(tmp_path: Path) -> Callable[..., Path]:
    """Write an endpoint list with these accelerator classes."""

    def write(*classes: str) -> Path:
        lines = [
            f"- {{name: s{number}, address: 10.0.0.{number + 1}, port: 8000, "
            f"accelerator: {{class: {name}, costPerHour: 2.0}}}}"
            for number, name in enumerate(classes)
        ]
        path = tmp_path / "endpoints.yaml"
        path.write_text("endpoints:\n" + "\n".join(lines))
        return path

    return write
