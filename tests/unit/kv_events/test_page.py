# SPDX-License-Identifier: Apache-2.0
"""The names in docs/precise-prefix-caches.md exist: metrics, their labels, and parameters."""

import re
from pathlib import Path

import pytest

from epp.pool.kv_events.order import EventCounts
from epp.pool.kv_events.producer import PrecisePrefixCacheProducer
from epp.pool.tokens.producer import Result, TokenProducer

REPOSITORY = Path(__file__).parents[3]
PAGE = (REPOSITORY / "docs" / "precise-prefix-caches.md").read_text()
PROTO = re.sub(r"_([a-z])", lambda found: found[1].upper(), (REPOSITORY / "proto" / "decision.proto").read_text())
METRICS = {
    f"llm_d_epp_{each.name}{'_total' if each.is_counter else ''}": each
    for each in (*PrecisePrefixCacheProducer.metrics, *TokenProducer.metrics)
}


@pytest.mark.parametrize("metric", sorted(set(re.findall(r"llm_d_epp_\w+", PAGE))))
def test_metric_exists(metric):
    assert metric in METRICS
    assert f"`{metric}`" in (REPOSITORY / "docs" / "metrics.md").read_text()


def test_labels_exist():
    for metric, label in re.findall(r"(llm_d_epp_\w+)\{(\w+)=", PAGE):
        assert label in METRICS[metric].labels
    counts = EventCounts()
    assert set(re.findall(r'cause="(\w+)"', PAGE)) == set(counts.resets)
    assert set(re.findall(r'result="(\w+)"', PAGE)) <= {*counts.replays, "right", "wrong"}
    (table,) = re.findall(r"Meaning \|\n\|---\|---\|\n((?:\|.*\n)+)", PAGE)
    assert set(re.findall(r"`([a-z ]+)`(?=[^|]*\| )", table)) == set(Result)


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`(?:\w+\.)*([a-z]+[A-Z]\w+)[:`]", PAGE))))
def test_parameter_exists(name):
    assert name in (REPOSITORY / "docs" / "reference" / "PLUGINS.md").read_text() + PROTO
