# SPDX-License-Identifier: Apache-2.0
"""The nearest name is suggested only where it is near."""

import pytest

from epp.framework.messages import hint_at, nearest

TYPES = (
    "multicluster-kv-cache-utilization-scorer",
    "kv-cache-utilization-scorer",
    "openai-parser",
    "prefix-cache-affinity-filter",
    "prefix-cache-scorer",
    "queue-scorer",
)


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("queue-scorrer", "queue-scorer"),
        ("queue_scorer", "queue-scorer"),
        ("QueueScorer", "queue-scorer"),
        ("prefix-cash-scorer", "prefix-cache-scorer"),
        ("queue", "queue-scorer"),
        ("kv-cache-scorer", "kv-cache-utilization-scorer"),
        ("prefix-cache", None),  # of two
        ("scorer", None),
        ("token-scorer", None),
        ("q", None),
        ("", None),
        ("latency-scorer", None),
    ],
)
def test_misspelling_or_part_of_a_name_is_near(name, near):
    assert nearest(name, TYPES) == near


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("wieght", "did you mean 'weight'?"),  # neighbours swapped: one edit
        ("wt", "known are name, onError, weight"),
        ("on_error", "did you mean 'onError'?"),
        ("height", "did you mean 'weight'?"),
        ("sight", "known are name, onError, weight"),  # two edits are too many for five letters
    ],
)
def test_hint_is_the_near_name_or_all_names(name, hint):
    assert hint_at(name, ["weight", "name", "onError"]) == hint
