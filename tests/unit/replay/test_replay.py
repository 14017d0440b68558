# SPDX-License-Identifier: Apache-2.0
"""Replays of traces: what becomes of the requests."""

import math
import pickle
from dataclasses import replace
from typing import TypeVar

import msgspec
import numpy as np
import pytest

from epp.config.load import sample_texts
from epp.framework.accelerators.tag import AcceleratorDeclaration
from epp.lab.replay.comparison import Difference, compare
from epp.lab.replay.fleet import JITTER_SECONDS, Fleet, ReplayOptions
from epp.lab.replay.jobs import replay
from epp.lab.replay.outcome import Status
from epp.lab.replay.simulation import Simulation
from epp.lab.replay.summary import Targets, groups, summarise
from epp.lab.replay.traffic import TraceTraffic
from epp.lab.sim.profile import PRESETS
from epp.lab.traces.trace import TraceRequest
from tests.unit.replay.conftest import BLOCK, ListTrace, config, fleet, requests, with_roles

HOP = 0.001
_PRECISE = """\
- type: endpoint-notification-source
- type: precise-prefix-cache-producer
  parameters: {tokenProcessorConfig: {blockSizeTokens: 16}, kvEventsConfig: {podDiscoveryConfig: {socketPort: 5557}}}
- {type: prefix-cache-scorer, parameters: {prefixMatchInfoProducerName: precise-prefix-cache-producer}}
"""
T = TypeVar("T")


def test_a_lone_request_takes_the_time_of_its_prompt_and_its_tokens():
    profile = msgspec.structs.replace(PRESETS["a100"], max_num_batched_tokens=4096)
    trace = ListTrace([TraceRequest(at=2.0, prompt_tokens=780, output_tokens=11)])
    outcome = replay(config("adaptive"), fleet(profile), trace, ReplayOptions())
    # 780 tokens at 7,800 a second, then ten steps of 14.7 ms; one hop to the server and one back
    assert outcome.columns.ttft == pytest.approx([0.1 + 2 * HOP])
    assert outcome.columns.total == pytest.approx([0.1 + 10 * 0.0147 + 2 * HOP])
    assert outcome.columns.tpot == pytest.approx([0.0147])
    assert outcome.busy_seconds == pytest.approx([0.1 + 10 * 0.0147])
    assert outcome.dollars == pytest.approx((0.1 + 10 * 0.0147) / 3600)


def test_overhead_of_a_request_delays_it_and_keeps_no_server_busy():
    profile = msgspec.structs.replace(PRESETS["a100"], request_overhead_seconds=0.5)
    trace = ListTrace([TraceRequest(at=2.0, prompt_tokens=780, output_tokens=11)])
    outcome = replay(config("adaptive"), fleet(profile), trace, ReplayOptions())
    assert outcome.columns.ttft == pytest.approx([0.5 + 0.1 + 2 * HOP])
    assert outcome.busy_seconds == pytest.approx([0.1 + 10 * 0.0147])


def test_times_of_replays_in_which_all_is_refused_have_no_difference():
    trace = ListTrace([TraceRequest(at=float(at), prompt_tokens=9000, output_tokens=10) for at in range(10)])
    outcomes = [replay(config(name), fleet("h100"), trace, ReplayOptions()) for name in ("adaptive", "random")]
    difference = compare(outcomes)[1].differences["ttft.p90"]
    assert difference == Difference(None, None, None, "no difference shown")


def test_a_prefix_is_computed_once_and_found_by_the_picker():
    request = TraceRequest(at=0.0, prompt_tokens=20 * BLOCK + 10, output_tokens=2, blocks=tuple(range(20)))
    trace = ListTrace([msgspec.structs.replace(request, at=float(number)) for number in range(6)])
    outcome = replay(config("prefix-heavy"), fleet("a100", "a100", "a100"), trace, ReplayOptions())
    assert outcome.columns.cached_tokens.tolist() == [0, *[20 * BLOCK] * 5]
    assert len(set(outcome.columns.server.tolist())) == 1


def test_the_next_turn_of_a_session_finds_the_answer_of_the_one_before_in_the_cache():
    first = TraceRequest(at=0.0, prompt_tokens=100, output_tokens=100, session="s", blocks=(1,))
    # blocks 0 and 1 are in the first prompt and its answer; block 2 has the end of the answer and new text
    second = TraceRequest(at=9.0, prompt_tokens=300, output_tokens=5, session="s", blocks=(1, 2, 3, 4))
    stranger = TraceRequest(at=9.0, prompt_tokens=300, output_tokens=5, blocks=(1, 2, 3, 4))
    outcome = replay(config("adaptive"), fleet("a100"), ListTrace([first, second, stranger]), ReplayOptions())
    # engines have blocks of 16 tokens; the last token of the answer is never fed back
    assert outcome.columns.cached_tokens.tolist() == [0, 192, 64]


def test_requests_without_an_answer_in_time_leave_and_count_as_infinite():
    slow = msgspec.structs.replace(PRESETS["t4"], max_num_seqs=1, max_num_batched_tokens=1024)
    trace = ListTrace([TraceRequest(at=0.0, prompt_tokens=10, output_tokens=200) for _ in range(3)])
    outcome = replay(config("llm-d-default"), fleet(slow), trace, ReplayOptions(timeout_seconds=5.0))
    assert outcome.columns.status.tolist() == [Status.SERVED, Status.TIMED_OUT, Status.TIMED_OUT]
    found = summarise(outcome, Targets(ttft=1.0))
    assert (found.served, found.timed_out, found.ttft.p90) == (1, 2, None)
    assert found.goodput == pytest.approx(1 / 3)


def test_a_prompt_longer_than_the_context_is_refused_by_the_server():
    trace = ListTrace([TraceRequest(at=0.0, prompt_tokens=9000, output_tokens=2)])
    outcome = replay(config("llm-d-default"), fleet("a100"), trace, ReplayOptions())
    assert outcome.columns.status.tolist() == [Status.REFUSED]


def test_roles_split_prompt_and_answer():
    servers = with_roles(fleet("a100", "a100"), "prefill", "decode")
    trace = ListTrace([TraceRequest(at=0.0, prompt_tokens=4000, output_tokens=11)])
    outcome = replay(config("prefill-decode"), servers, trace, ReplayOptions())
    assert outcome.columns.server.tolist() == [1]
    # 4,000 tokens here; there the last one, and ten steps
    assert outcome.busy_seconds == pytest.approx([4000 / 7800, 1 / 7800 + 10 * 0.0147])


def test_engines_for_prompts_and_for_answers_publish_what_they_store():
    text = sample_texts()["prefill-decode"].replace("- type: prefix-cache-scorer\n", _PRECISE, 1)
    servers = with_roles(fleet(*["a100"] * 3), "prefill", "prefill", "decode")
    same = TraceRequest(at=0.0, prompt_tokens=40 * BLOCK, output_tokens=5, blocks=tuple(range(40)))
    trace = ListTrace([same, msgspec.structs.replace(same, at=1.0)])
    outcome = replay(config(text), servers, trace, ReplayOptions())
    # all blocks but that of the last token, which is always computed
    assert outcome.columns.cached_tokens.tolist() == [0, 40 * BLOCK - 16]
    # the second prompt is known at the server of answers, and no longer worth a server of its own
    assert outcome.busy_seconds[:2].sum() == pytest.approx(40 * BLOCK / 7800)


def conversations(count: int, turns: int) -> ListTrace:
    """Return requests of so many sessions, each with 256 tokens more than the one before."""
    found = [
        TraceRequest(
            at=0.3 * (turn * count + number),
            prompt_tokens=256 * (turn + 1) + 10,
            output_tokens=2,
            blocks=tuple(range(100 * number, 100 * number + 4 * (turn + 1))),
        )
        for turn in range(turns)
        for number in range(count)
    ]
    return ListTrace(found)


class Checked(Simulation):
    """A run that keeps what the picker predicted of caches, and what engines reported."""

    def outcome(self):
        (reader,) = self._replicas[0].kv_event_readers
        checks = (each for each in reader.samples if each.metric.name.startswith("prefix_check"))
        self.checks = {each.labels: each.value for each in checks}
        return super().outcome()


def test_pickers_know_what_engines_evict_and_what_their_hosts_and_disks_keep():
    text = sample_texts()["precise-prefix"]
    cached = []
    host, disk = {"num_host_blocks": 400}, {"num_disk_blocks": 400}
    for lower in ({}, host, disk, {"num_host_blocks": 300, "num_disk_blocks": 100}):
        small = msgspec.structs.replace(PRESETS["a100"], num_gpu_blocks=600, **lower)
        traffic = TraceTraffic(ListTrace(conversations(40, 6)))
        run = Checked(config(text), fleet(small, small), traffic, ReplayOptions())
        cached.append(run.run().columns.cached_tokens.sum())
        assert run.checks["predicted",] == run.checks["reported",] == cached[-1]
        assert not run.checks["wrong",]
    assert min(cached[1:]) > 2 * cached[0]


_COPYING = """\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: precise-prefix-cache-producer
- {type: p2p-source-producer, parameters: {prefixMatchInfoProducerName: precise-prefix-cache-producer}}
- type: active-request-scorer
"""


def test_a_prompt_is_copied_from_the_host_of_the_server_that_the_picker_names():
    small = msgspec.structs.replace(PRESETS["a100"], max_model_len=2624, num_gpu_blocks=164, num_host_blocks=200)
    trace = [
        TraceRequest(
            at=at, prompt_tokens=blocks * BLOCK, output_tokens=tokens, blocks=tuple(range(first, first + blocks))
        )
        for at, first, blocks, tokens in (
            *((0.0, 0, 40, 2), (0.9, 200, 1, 30), (1.0, 100, 40, 64)),
            *((2.4, 300, 1, 10), (2.41, 400, 1, 60), (2.7, 0, 40, 2)),
        )
    ]
    options = ReplayOptions(transfer_seconds_per_token=0.0001, experimental=True)
    columns = replay(config(_COPYING), fleet(small, small), ListTrace(trace), options).columns
    # the third prompt takes the place of the first one; the last one goes to the other server, as that one is busy
    assert columns.server.tolist() == [0, 1, 0, 1, 0, 1]
    # all whole blocks but that of the last token are copied, and 16 tokens are computed
    copied = 40 * BLOCK - 16
    assert columns.ttft[5] == pytest.approx(copied * 0.0001 + 16 / 7800 + 2 * HOP)
    assert columns.ttft[0] == pytest.approx(40 * BLOCK / 7800 + 2 * HOP)


def test_equal_seeds_give_equal_outcomes_and_other_seeds_others():
    trace = ListTrace(requests(8.0, 20.0))
    one, same, other = (
        replay(config("random"), fleet("a100", "a100", "t4"), trace, ReplayOptions(seed=seed)) for seed in (1, 1, 2)
    )
    assert one.columns.ttft.tobytes() == same.columns.ttft.tobytes()
    assert one.columns.server.tolist() != other.columns.server.tolist()


def test_other_seeds_delay_requests_by_some_milliseconds_without_random_choices_too():
    trace = ListTrace([TraceRequest(at=at, prompt_tokens=780, output_tokens=2) for at in (0.0, 0.05)])
    exact, one, other = (
        replay(config("llm-d-default"), fleet("a100"), trace, ReplayOptions(seed=seed)).columns.ttft
        for seed in (0, 1, 2)
    )
    # the second prompt waits until the first one is computed, 100 ms after that came
    assert exact == pytest.approx([0.1 + 2 * HOP, 0.15 + 0.0147 + 2 * HOP])
    assert one[1] != other[1]
    assert [one[1], other[1]] == pytest.approx([exact[1]] * 2, abs=JITTER_SECONDS)


def test_a_faster_trace_takes_longer_to_the_first_token():
    trace = ListTrace(requests(8.0, 20.0))
    normal, faster = (
        replay(config("adaptive"), fleet("a100", "t4"), trace, ReplayOptions(rate_scale=scale)) for scale in (1.0, 3.0)
    )
    assert len(normal) == len(faster)
    assert summarise(faster).ttft.p90 > summarise(normal).ttft.p90


def test_a_report_of_progress_can_stop_a_replay():
    seen: list[tuple[float, int]] = []

    def progress(now) -> bool:
        seen.append((now.seconds, len(now.outcome())))
        return now.seconds < 9.9

    trace = ListTrace(requests(5.0, 60.0))
    options = ReplayOptions(report_seconds=5.0)
    outcome = replay(config("adaptive"), fleet("a100", "a100"), trace, options, progress)
    assert outcome.stopped
    assert [seconds for seconds, _ in seen] == pytest.approx([5.0, 10.0])
    assert len(outcome) == sum(request.at <= 10.0 for request in trace) == seen[-1][1]


def test_settings_and_outcome_can_be_sent_to_another_process():
    def sent(value: T) -> T:
        return pickle.loads(pickle.dumps(value))  # noqa: S301  our own

    outcome = replay(sent(config("adaptive")), sent(fleet("a100")), ListTrace(requests(5.0, 5.0)), ReplayOptions())
    assert sent(outcome).columns.at.tolist() == outcome.columns.at.tolist()


def test_groups_add_up_to_all_requests_and_dollars():
    outcome = replay(config("adaptive"), fleet("h100", "t4"), ListTrace(requests(10.0, 20.0)), ReplayOptions())
    found = groups(outcome)
    for group in (found.models, found.tenants, found.classes):
        assert sum(each.requests for each in group.values()) == found.all.requests == len(outcome)
    assert set(found.tenants) == {"team-a", "team-b"}
    assert set(found.classes) == {"h100", "t4"}
    assert outcome.dollars.sum() == pytest.approx(outcome.dollars_of_servers.sum())
    assert found.all.fairness == pytest.approx(1.0)
    assert not math.isnan(np.nansum(outcome.columns.total))


QUEUES = """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
featureGates: [flowControl]
plugins:
- {type: queue-scorer}
- {type: max-score-picker}
- {type: concurrency-detector, parameters: {maxConcurrency: 4}}
schedulingProfiles:
- {name: default, plugins: [{pluginRef: queue-scorer}, {pluginRef: max-score-picker}]}
flowControl: {saturationDetector: {pluginRef: concurrency-detector}}
"""


def test_requests_wait_in_the_queues_of_the_picker_in_virtual_time():
    trace = ListTrace([TraceRequest(at=0.0, prompt_tokens=100, output_tokens=100) for _ in range(10)])
    outcome = replay(config(QUEUES), fleet("a100", "a100"), trace, ReplayOptions())
    assert (outcome.columns.status == Status.SERVED).all()
    queued = sorted(outcome.columns.queued)
    assert queued[:8] == [0.0] * 8  # four at each server
    # the other two until an answer ends: its prompt, with those of three others, and 99 steps of four
    assert queued[8] == pytest.approx(400 / 7800 + 99 * 0.0147 * (1 + 3 * 0.008), rel=0.05)


def test_requests_leave_the_queues_when_their_clients_do():
    trace = ListTrace([TraceRequest(at=0.0, prompt_tokens=100, output_tokens=1000) for _ in range(12)])
    outcome = replay(config(QUEUES), fleet("a100"), trace, ReplayOptions(timeout_seconds=3.0))
    assert (outcome.columns.status == Status.TIMED_OUT).sum() == 8
    assert (outcome.columns.server == -1).sum() == 8


def test_ome_19_spread_of_pace_is_that_of_the_answers_of_a_session():
    sessions = [TraceRequest(at=9.0 * n, prompt_tokens=10, output_tokens=11, session="s") for n in range(2)]
    alone = TraceRequest(at=30.0, prompt_tokens=10, output_tokens=11, session="another")
    none = TraceRequest(at=40.0, prompt_tokens=10, output_tokens=11)
    outcome = replay(config("round-robin"), fleet("a100", "t4"), ListTrace([*sessions, alone, none]), ReplayOptions())
    first, second = outcome.columns.tpot[:2].tolist()
    # standard deviation of two numbers over their mean: half the difference over half the sum
    assert summarise(outcome).session_pace_spread == pytest.approx(abs(first - second) / (first + second))
    equal = replay(config("round-robin"), fleet("a100", "a100"), ListTrace([*sessions]), ReplayOptions())
    assert summarise(equal).session_pace_spread == pytest.approx(0.0)
    without = replay(config("round-robin"), fleet("a100"), ListTrace([none]), ReplayOptions())
    assert summarise(without).session_pace_spread is None


def test_ome_19_sessions_that_keep_their_class_have_a_steadier_pace():
    classes = ("h100", "h100", "a100", "a100", "t4", "t4")
    declared = [AcceleratorDeclaration(accelerator_class=name) for name in classes]
    servers = tuple(
        replace(server, endpoint=replace(server.endpoint, accelerator=each))
        for server, each in zip(fleet(*classes).servers, declared, strict=True)
    )
    # forty chats; nothing of their prompts is cached, so that only the session tells where they were
    requests_of_chats = (
        TraceRequest(at=n * 0.02, prompt_tokens=300, output_tokens=100 + n % 7 * 20, session=f"s{n % 40}")
        for n in range(600)
    )
    trace = ListTrace([*requests_of_chats])
    spreads = []
    for seconds in (0, 1):
        text = sample_texts()["adaptive"].replace("delayWeight:", f"classStickinessSeconds: {seconds}, delayWeight:")
        found = summarise(replay(config(text), Fleet(servers), trace, ReplayOptions()))
        assert found.served == 600
        spreads.append(found.session_pace_spread)
    assert spreads[1] < 0.8 * spreads[0]
