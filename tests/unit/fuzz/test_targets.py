# SPDX-License-Identifier: Apache-2.0
"""The corpora of the fuzz targets and some changes of them; `make fuzz` runs many more, chosen by coverage."""

import contextlib
from random import Random

import pytest
from structlog.testing import capture_logs

from perf.fuzz.session_target import Target as SessionTarget
from perf.fuzz.targets import TARGETS, corpus, mutated, new_target

RUNS = {"session": 300, "bodies": 300, "exposition": 60, "config": 20}
"""A configuration takes 20 ms, all others less than one."""


@pytest.mark.parametrize("name", TARGETS)
def test_corpus_and_changes_of_it_raise_nothing(name):
    random, inputs = Random(7), list(corpus(name).values())
    assert len(inputs) >= 10
    with new_target(name) as target, capture_logs():
        for content in inputs:
            target(content)
        for _ in range(RUNS[name]):
            target(mutated(random, inputs))


def test_target_of_sessions_routes_what_it_is_given():
    with contextlib.closing(SessionTarget()) as target:
        for content in corpus("session").values():
            target(content)
        assert target.routed >= target.exchanges / 3


@pytest.mark.parametrize(
    ("name", "spoilt"),
    [
        ("bodies", "perf.fuzz.bodies_target.UsageReader.feed"),
        ("session", "epp.routing.director.routing.Routing.complete"),
        ("exposition", "epp.pool.collectors.page_limits.MetricFilter.end"),
    ],
)
def test_target_notices_what_is_wrong(monkeypatch, name, spoilt):
    monkeypatch.setattr(spoilt, SPOILT[name])
    with new_target(name) as target, capture_logs(), pytest.raises(AssertionError):
        run(target, corpus(name).values())


def run(target, inputs):
    for content in inputs:
        target(content)


def _reads_whole_bodies_alone(self, piece, *, last):
    self._counts = {"prompt_tokens": len(piece)}


SPOILT = {
    "bodies": _reads_whole_bodies_alone,
    "session": lambda self, cause: None,
    "exposition": lambda self: b"other\n",
}
