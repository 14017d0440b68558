# SPDX-License-Identifier: Apache-2.0
"""The traffic that is run in real time is that of the replay: prompts, servers and configuration."""

from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import msgspec

from epp.config import load_text
from epp.lab.replay.fleet import ReplayOptions, load_fleet
from epp.lab.replay.replicas import check_config
from epp.lab.replay.traffic import TraceTraffic
from epp.lab.sim.machine import Machine
from epp.lab.sim.openai_api import CompletionRequest
from epp.lab.sim.plan import make_plan
from epp.lab.sim.profile import SimProfile
from epp.lab.sim.work import SimRequest
from epp.lab.traces.reading import open_trace
from perf.fidelity.cases import CASES
from perf.fidelity.playing import TRACE, write_files

REQUESTS = 40


def cached(profile: SimProfile, requests: Sequence[SimRequest]) -> list[int]:
    """Return the cached tokens of each prompt on one server, which answers one request after the other."""
    machine, found = Machine(profile, every_token=False), []
    for number, request in enumerate(requests):
        machine.submit(msgspec.structs.replace(request, request_id=number))
        found.append(machine.advance(machine.now + 1000.0)[-1].cached_tokens)
    return found


def test_a_server_finds_as_much_of_each_prompt_in_its_cache_as_an_engine_of_a_replay(tmp_path: Path):
    case = CASES["agents"]
    write_files(case, tmp_path, [8000] * len(case.servers))
    profile = next(iter(case.profiles.values()))
    replayed = [one.work(profile) for one in islice(TraceTraffic(open_trace(tmp_path / TRACE)), REQUESTS)]
    sent = [
        make_plan(CompletionRequest(prompt=prompt, max_tokens=one.output_tokens, ignore_eos=True), profile, 0).request
        for one, prompt in zip(case.requests[:REQUESTS], case.prompts(), strict=False)
    ]
    assert [one.prompt_tokens for one in sent] == [one.prompt_tokens for one in replayed]
    assert [one.output_tokens for one in sent] == [one.output_tokens for one in replayed]
    assert (found := cached(profile, sent)) == cached(profile, replayed)
    assert sum(found) > sum(one.prompt_tokens for one in sent) / 2


def test_a_replay_reads_the_servers_and_the_configuration_of_the_gateway(tmp_path: Path):
    for case in CASES.values():
        directory = tmp_path / case.name
        write_files(case, directory, list(range(8000, 8000 + len(case.servers))))
        given = [f"{name}={directory}/{profile.name}.yaml" for name, profile in case.profiles.items()]
        fleet = load_fleet(directory / "endpoints.yaml", given)
        assert [server.profile for server in fleet.servers] == list(case.profiles.values())
        config = load_text((directory / "config.yaml").read_text(), case.config)
        assert check_config(config, ReplayOptions()) == []  # all of it has an effect in a replay
