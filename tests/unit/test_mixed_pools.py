# SPDX-License-Identifier: Apache-2.0
"""Pools in which some servers have a metrics page and others have none, on simulated machines in virtual time."""

from collections import Counter
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import pytest

from epp.config import Builder, assemble, default_config, load_file
from epp.framework import KV_USAGE, RUNNING, WAITING, Endpoint, Headers, ManualClock
from epp.framework.datalayer import Report
from epp.framework.registry import Registry
from epp.lab.sim.machine import Machine
from epp.lab.sim.profile import PRESETS
from epp.lab.sim.work import SimRequest
from epp.routing.datastore import Datastore
from epp.routing.director import Cause, Director, Runtime

CONFIG = Path(__file__).parents[2] / "config"
FILES = sorted(path for path in CONFIG.glob("*.yaml") if "decode" not in path.stem)
"""Those for servers that all do the same."""
REPORT_SECONDS = 0.05
HEADERS = Headers([(":path", "/v1/completions"), ("x-llm-d-inference-fairness-id", "team-a")])
"""Of a tenant whose quota in the ready-made file allows for all of this."""
A100 = msgspec.structs.replace(PRESETS["a100"], max_num_seqs=16)
H100, T4 = (msgspec.structs.replace(PRESETS[name], max_num_seqs=16) for name in ("h100", "t4"))


def traffic(config, servers, *, per_second, requests=400, prompt_words=300):
    """Send requests at random times; return how many each server got, and the most that each had in flight.

    `servers` are pairs of a simulated machine and whether it has a metrics page.
    """
    clock = ManualClock()
    store = Datastore(clock)
    labels = [{"llm-d.ai/role": "prefill-decode"}] * len(servers)
    endpoints = [Endpoint(f"e{i}", f"10.0.0.{i + 1}", 8000, labels=labels[i]) for i in range(len(servers))]
    store.replace(endpoints)
    machines = [Machine(profile) for profile, _ in servers]
    director = Director(Runtime(store, clock), assemble(config, Builder(Registry(), clock)).pipeline)
    generator = np.random.default_rng(1)
    routings, got, most = {}, Counter(), Counter()

    def pass_time(until):
        while clock.now() < until:
            clock.advance(min(REPORT_SECONDS, until - clock.now()))
            for endpoint, machine, (_, has_page) in zip(endpoints, machines, servers, strict=True):
                for emission in machine.advance(max(clock.now(), machine.now)):
                    routing = routings[emission.request_id]
                    if emission.index == 0:
                        routing.response_piece(b"x", last=False, now=partial(float, emission.at_seconds))
                    if emission.finish_reason is not None:
                        routing.complete(Cause.NATURAL)
                if has_page:
                    gauges = {WAITING: machine.waiting, RUNNING: machine.running, KV_USAGE: machine.kv_usage}
                    store.report(endpoint, Report(gauges))

    at = 0.0
    for number in range(requests):
        at += generator.exponential(1 / per_second)
        pass_time(at)
        words = " ".join(f"{number}-{word}" for word in range(prompt_words))  # no two prompts begin alike
        body = msgspec.json.encode({"model": "m", "prompt": words, "stream": True})
        routings[number] = director.route(HEADERS, body, None)
        slot = routings[number].result.primary.slot
        machines[slot].submit(SimRequest(request_id=number, prompt_tokens=2 * prompt_words, output_tokens=64))
        got[slot] += 1
        most[slot] = max(most[slot], machines[slot].running + machines[slot].waiting)
    return [got[slot] for slot in range(len(servers))], [most[slot] for slot in range(len(servers))]


@pytest.mark.parametrize("per_second", [0.5, pytest.param(4, marks=pytest.mark.slow), 12])
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_equal_servers_get_comparable_shares_with_and_without_a_page(path, per_second):
    shares, _ = traffic(load_file(path), [(A100, True), (A100, False)], per_second=per_second, requests=80)
    assert min(shares) >= 28, shares  # of 80; 40 each would be equal


@pytest.mark.parametrize("pages", [(True, False, False, False), (True, True, True, False), (False,) * 4])
@pytest.mark.parametrize("per_second", [2, 24])
def test_number_of_servers_with_a_page_does_not_matter(pages, per_second):
    shares, most = traffic(default_config(), [(A100, page) for page in pages], per_second=per_second, requests=200)
    assert min(shares) >= 35, shares  # of 200; 50 each would be equal
    assert max(most) <= 2 * min(most) + 2, most


@pytest.mark.parametrize("name", ["llm-d-default", "least-loaded"])
@pytest.mark.parametrize("silent", [0, 1])
def test_unlike_hardware_without_a_page_is_neither_starved_nor_flooded(name, silent):
    config = load_file(CONFIG / f"{name}.yaml")
    servers = [(profile, place != silent) for place, profile in enumerate((H100, T4))]
    shares, most = traffic(config, servers, per_second=12)
    assert min(shares) >= 40, shares  # of 400
    # what is sent there is bounded by what the server with a page holds, as far as its last report tells
    assert most[silent] <= most[1 - silent] + 4, most
