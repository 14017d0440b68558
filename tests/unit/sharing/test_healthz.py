# SPDX-License-Identifier: Apache-2.0
"""The states of a main process and its workers as one."""

import json
from typing import Any

import pytest

from epp.sharing.channel import ChannelClosedError
from epp.sharing.healthz import CALL, Processes, WorkersHealth, merged

TWO = Processes(serving=2)


def state(**more: object) -> dict[str, Any]:
    return {
        "ready": True,
        "config": {"generation": 1, "refused": None},
        "failing_tasks": {},
        "lost_log_lines": 0,
        "not_in_effect": [],
        **more,
    }


def test_workers_without_a_difference_are_only_counted_and_one_without_an_answer_is_named():
    found = merged(state(), {0: state(), 1: state()}, Processes(serving=2, starting=1, replaced=3))
    assert found == state(workers={"serving": 2, "starting": 1, "replaced": 3})
    assert merged(state(), {0: None, 1: state()}, TWO)["workers"]["silent"] == [0]


def test_picker_is_ready_only_while_a_worker_serves():
    found = merged(state(), {}, Processes(starting=2))
    assert (found["ready"], found["reason"]) == (False, "no worker process serves")
    draining = state(ready=False, reason="draining")
    assert merged(draining, {}, Processes())["reason"] == "draining"


def test_differences_are_told_once_for_all_workers_that_have_them():
    refused, newer = {"generation": 1, "refused": "line 3: unknown plugin"}, {"generation": 2, "refused": None}
    failing = {"shadow profiles": "KeyError: 'x'"}
    old, new = state(config=refused, failing_tasks=failing), state(config=newer)
    found = merged(new, {0: old, 1: new, 2: old}, TWO)
    assert found["workers"]["differing"] == [{"workers": [0, 2], "config": refused, "failing_tasks": failing}]


def test_problem_that_the_main_process_has_too_is_not_repeated():
    problem, other = {"plugin": "a", "problem": "no server answers"}, {"plugin": "b", "problem": "slow"}
    found = merged(state(degraded_plugins=[problem]), {0: state(degraded_plugins=[problem, other])}, TWO)
    assert found["degraded_plugins"] == [problem]
    assert found["workers"]["differing"] == [{"workers": [0], "degraded_plugins": [other]}]


def test_what_requests_use_is_summed():
    spans = {"exporters": ["otlp"], "exported_spans": 4, "failed_spans": 0, "dropped_spans": 1, "failing": None}
    workers = {
        number: state(
            queued={"requests": number, "bytes": 10, "longest_seconds": float(number)},
            budgets_used_up={"streams": {"used": 5, "limit": 10, "refusals": number}},
            lost_log_lines=number,
            quota_alerts=[{"tenant": "a", "limit": "total", "used": number, "most": 9}],
            quotas_almost_used_up=1,
            tracing=spans,
        )
        for number in (1, 2)
    }
    found = merged(state(queued={"requests": 0, "bytes": 0, "longest_seconds": 0.0}), workers, TWO)
    assert found["queued"] == {"requests": 3, "bytes": 20, "longest_seconds": 2.0}
    assert found["budgets_used_up"] == {"streams": {"used": 10, "limit": 20, "refusals": 3}}
    assert found["lost_log_lines"] == 3
    assert (len(found["quota_alerts"]), found["quotas_almost_used_up"]) == (1, 1)
    assert found["tracing"]["exported_spans"] == 8
    assert "differing" not in found["workers"]


def test_many_problems_of_many_workers_are_few_lines():
    workers = {
        number: state(
            not_in_effect=[{"plugin": f"p{number}", "file": f"f{file}"} for file in range(1000)],
            failing_tasks={f"task {task}": "failed" for task in range(1000)},
            quota_alerts=[{"tenant": f"{number}-{tenant}", "limit": "total"} for tenant in range(20)],
        )
        for number in range(100)
    }
    assert len(json.dumps(merged(state(), workers, TWO))) < 60_000


class Worker:
    """The channel to a worker that answers, or hangs."""

    def __init__(self, answer: object) -> None:
        self.answer = answer

    async def call(self, kind: str, *, most_seconds: float) -> object:
        assert kind == CALL
        assert most_seconds > 0
        if self.answer is None:
            raise ChannelClosedError("no answer")
        return self.answer


@pytest.mark.parametrize("answer", [None, state(reason="starting", ready=False)])
async def test_state_is_that_of_the_last_answers(answer):
    health = WorkersHealth(lambda: TWO)
    assert health.with_workers(state())["workers"] == TWO._asdict()
    await health.refresh({4: Worker(answer)})
    told = {"silent": [4]} if answer is None else {"differing": [{"workers": [4], "reason": "starting"}]}
    assert health.with_workers(state())["workers"] == {**TWO._asdict(), **told}
