# SPDX-License-Identifier: Apache-2.0
"""Limits of file descriptors, with the real limits of this process."""

import resource
from collections.abc import Callable, Iterator

import pytest

from epp.runtime import process


@pytest.fixture
def soft_limit() -> Iterator[Callable[[int], None]]:
    """Set the soft limit of this process; it is put back after the test."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield lambda most: resource.setrlimit(resource.RLIMIT_NOFILE, (most, before[1]))
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_soft_limit_is_raised_to_the_hard_one(soft_limit):
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft_limit(hard - 1)
    process.raise_limit()
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    process.raise_limit()
    assert process.limit() == hard


@pytest.mark.parametrize(
    ("most", "kept", "brief"),
    [
        (4096, 3808, 3840),  # 256 for others, 32 for turns
        (1024, 736, 768),
        (512, 224, 256),
        (128, 56, 64),  # half for others, an eighth of that for turns
    ],
)
def test_polling_leaves_descriptors_to_others(soft_limit, most, kept, brief):
    soft_limit(most)
    assert process.polling_bound(kept=True) == kept
    assert process.polling_bound(kept=False) == brief


@pytest.mark.parametrize("most", [128, 512, 1024, 4096])
def test_shortage_begins_where_connections_no_longer_fit_and_ends_with_the_limit_it_names(soft_limit, most):
    soft_limit(most)
    bound = process.polling_bound(kept=True)
    assert bound is not None
    fits = bound - 32  # for the listeners and pipes of a picker
    assert process.shortage(fits) is None
    told = process.shortage(fits + 1)
    assert told is not None
    assert f"polling needs {fits + 1} connections" in told
    named = int(told.partition("raise the limit to ")[2].split()[0])
    soft_limit(named)
    assert process.shortage(fits + 1) is None
