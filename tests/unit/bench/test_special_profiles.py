# SPDX-License-Identifier: Apache-2.0
"""Servers with roles, sessions and several pickers in virtual time, and what the profiles for them claim."""

from dataclasses import replace

import pytest

from epp.config import load_text
from epp.config.load import sample_texts
from perf.bench.profiles.fleets import FLEETS, Fleet, fleet
from perf.bench.profiles.outcome import Outcome
from perf.bench.profiles.virtual import simulate
from perf.bench.profiles.workloads import trace

pytestmark = pytest.mark.slow

SECONDS = 36.0


def run(sample: str, servers: Fleet, workload: str, load: float, *, seed: int = 3) -> Outcome:
    traffic = trace(workload, servers, load=load, seconds=SECONDS, seed=seed)
    return simulate(load_text(sample_texts()[sample], sample), servers, traffic)


# What samples claim. Shorter, and on fewer servers, than `make bench-profiles`.


def test_prefill_decode_keeps_the_time_between_tokens_short_while_long_prompts_come_in():
    default, adaptive, special = (
        run(one, FLEETS["split"], "documents", 0.5) for one in ("llm-d-default", "adaptive", "prefill-decode")
    )
    assert special.tpot(0.9) < 0.75 * min(default.tpot(0.9), adaptive.tpot(0.9))
    assert special.ttft(0.9) < default.ttft(0.9)
    assert special.dollars < min(default.dollars, adaptive.dollars)


def test_mixed_prefill_decode_gives_even_answers_for_fewer_dollars_on_two_kinds_of_hardware():
    servers = FLEETS["split-mixed"]
    default, adaptive, equal, special = (
        run(one, servers, "documents", 0.6)
        for one in ("llm-d-default", "adaptive", "prefill-decode", "mixed-prefill-decode")
    )
    assert special.tpot(0.9) < 0.9 * default.tpot(0.9)
    assert special.tpot(0.9) < adaptive.tpot(0.9)
    assert special.dollars < 0.9 * min(default.dollars, adaptive.dollars)
    assert special.dollars < equal.dollars
    assert special.ttft(0.9) < 0.75 * min(default.ttft(0.9), equal.ttft(0.9))


def test_sticky_sessions_stay_with_the_history_that_the_body_does_not_show():
    servers = fleet("equal", a100=3)
    default, adaptive, special = (
        run(one, servers, "sessions", 0.5) for one in ("llm-d-default", "adaptive", "session-sticky")
    )
    assert special.ttft(0.9) < 0.33 * min(default.ttft(0.9), adaptive.ttft(0.9))


def test_random_does_not_herd_where_many_pickers_see_old_pages():
    servers = replace(fleet("equal", a100=3), pickers=4, page_seconds=15.0)
    default, special = (run(one, servers, "unshared", 0.6) for one in ("llm-d-default", "random"))
    assert special.ttft(0.9) < 0.25 * default.ttft(0.9)


def test_adaptive_goes_by_its_own_requests_where_many_pickers_see_old_pages():
    servers = FLEETS["shared"]
    adaptive, special = (run(one, servers, "unshared", 0.7) for one in ("adaptive", "random"))
    assert adaptive.ttft(0.9) < special.ttft(0.9)
