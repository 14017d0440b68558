# SPDX-License-Identifier: Apache-2.0
"""What ready-made profiles claim on the fleets that they are made for, in virtual time."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from epp.config import load_text
from epp.config.load import sample_texts
from perf.bench.profiles.outcome import Outcome
from perf.bench.profiles.remarks import idle_gpus, idle_nodes, share_away
from perf.bench.profiles.special_fleets import ALL_FLEETS
from perf.bench.profiles.virtual import simulate
from perf.bench.profiles.workloads import trace

pytestmark = pytest.mark.slow

SECONDS = 36.0
OTHERS = ("llm-d-default", "adaptive")


def run(sample: str, fleet: str, workload: str, load: float, *, seconds: float = SECONDS, seed: int = 3) -> Outcome:
    traffic = trace(workload, ALL_FLEETS[fleet], load=load, seconds=seconds, seed=seed)
    return simulate(load_text(sample_texts()[sample], sample), ALL_FLEETS[fleet], traffic)


def run_all(sample: str, fleet: str, workload: str, load: float, *, seeds: Sequence[int] = (3, 4)) -> Outcome:
    """Return what became of the requests of several traces together: one alone shows chance as well."""
    outcomes = [run(sample, fleet, workload, load, seed=seed) for seed in seeds]
    served = tuple(one for outcome in outcomes for one in outcome.served)
    return Outcome(SECONDS * len(outcomes), served, sum(outcome.dollars for outcome in outcomes))


def test_long_context_profile_keeps_short_requests_from_waiting_behind_documents():
    special, *others = (
        run(name, "context-ranges", "rare-documents", 0.6, seed=5) for name in ("long-context", *OTHERS)
    )
    for other in others:
        assert special.of_group("short").ttft(0.99) < other.of_group("short").ttft(0.99)
        assert special.of_group("short").over_target < other.of_group("short").over_target
        assert special.of_group("long").ttft(0.9) < 1.5 * other.of_group("long").ttft(0.9)
    assert not special.timeouts


def test_long_context_profile_sends_no_document_where_it_is_refused():
    special, default = (
        run(name, "short-contexts", "rare-documents", 0.5) for name in ("long-context", "llm-d-default")
    )
    assert not any(one.refused for one in special.served)
    assert sum(one.refused for one in default.served) > 0.3 * len(default.of_group("long").served)


def test_lora_profile_and_adaptive_load_fewer_adapters_and_requests_do_not_wait_for_them():
    special, default, adaptive = (run(name, "many-adapters", "adapters", 0.5) for name in ("lora-dense", *OTHERS))
    assert adaptive.ttft(0.9) < special.ttft(0.9)
    for one in (special, adaptive):
        assert one.ttft(0.5) < 0.1 * default.ttft(0.5)
        assert one.adapter_loads < 0.6 * default.adapter_loads
        assert not one.timeouts


@pytest.mark.timeout(600)  # two runs with long prompts
@pytest.mark.parametrize(("fleet", "load"), [("full-caches", 0.7), ("crowded-caches", 0.83)])
def test_precise_prefix_finds_what_other_pickers_have_filled_caches_with(fleet, load):
    precise, approximate = (run(name, fleet, "shared-prefixes", load) for name in ("precise-prefix", "llm-d-default"))
    assert precise.cached_share > approximate.cached_share + 0.1
    assert precise.ttft(0.9) < 0.75 * approximate.ttft(0.9)


@pytest.mark.timeout(600)
def test_precise_prefix_is_as_good_as_the_approximate_index_for_one_picker():
    fleet = replace(ALL_FLEETS["full-caches"], pickers=1)
    traffic = trace("shared-prefixes", fleet, load=0.7, seconds=SECONDS, seed=3)
    precise, approximate = (
        simulate(load_text(sample_texts()[name], name), fleet, traffic) for name in ("precise-prefix", "llm-d-default")
    )
    assert precise.cached_share > approximate.cached_share - 0.02


def test_packing_profile_leaves_nodes_idle_and_is_in_time():
    fleet = ALL_FLEETS["slices"]
    special, *others = (run(name, "slices", "unshared", 0.2) for name in ("mig-packing", *OTHERS))
    assert "node-c" in idle_nodes(fleet, special)
    assert len(idle_gpus(fleet, special)) >= 3
    for other in others:
        assert not idle_nodes(fleet, other)
    assert special.ttft(0.9) < 0.6  # what the profile aims at
    assert special.over_target <= 0.02


def test_cluster_profile_does_not_travel_while_there_is_room():
    fleet = ALL_FLEETS["two-clusters"]
    # half of the servers are here: 60 % of what they can serve
    special, *others = (run_all(name, "two-clusters", "conversations", 0.3) for name in ("multi-cluster", *OTHERS))
    assert share_away(fleet, special) < 0.05
    for other in others:
        assert share_away(fleet, other) > share_away(fleet, special)
        assert special.ttft(0.5) < other.ttft(0.5)
        assert special.ttft(0.9) < other.ttft(0.9)


def test_cluster_profile_has_another_cluster_serve_what_is_too_much_for_the_local_one():
    # 150 % of what the servers here can serve
    special, default = (
        run_all(name, "two-clusters", "conversations", 0.75, seeds=(3, 4, 5))
        for name in ("multi-cluster", "llm-d-default")
    )
    assert not special.timeouts
    assert special.ttft(0.9) < default.ttft(0.9)
    assert share_away(ALL_FLEETS["two-clusters"], special) > 0.25
