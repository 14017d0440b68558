# SPDX-License-Identifier: Apache-2.0
"""The hash table of the index, compared with a dict."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epp.pool.kv_events.rows import RowTable

SECRET = 0x4F1BBCDCBFA53E0B
KEYS = st.lists(st.integers(1, 300) | st.integers(2**64 - 5, 2**64 - 1), max_size=60)


def keys_of(values) -> np.ndarray:
    return np.array(values, dtype=np.uint64)


@settings(max_examples=60)
@given(st.lists(st.tuples(st.sampled_from(["put", "remove"]), KEYS), max_size=20), st.integers(0, 2**63 - 1))
def test_table_has_what_was_put_and_not_removed(steps, secret):
    table, kept = RowTable(2_000, secret), {}
    values = table.column(np.uint64)
    for now, (step, drawn) in enumerate(steps, start=1):
        keys = keys_of(drawn)
        if step == "put":
            rows = table.put(keys, now)
            assert (table.keys[rows] == keys).all()
            assert (table.used[rows] == now).all()
            values[rows] = keys
            kept.update(dict.fromkeys(drawn))
        else:
            rows = np.unique(table.find(keys))
            table.remove(rows[rows >= 0])
            for key in drawn:
                kept.pop(key, None)
        assert table.count == len(kept)
        everything = keys_of(list(kept))
        rows = table.find(everything)
        assert (rows >= 0).all()
        assert (values[rows] == everything).all()
        assert len(set(rows.tolist())) == len(kept)
        absent = keys_of(list(range(301, 400)))
        assert (table.find(absent) < 0).all()


@pytest.mark.parametrize("secret", [0, 1, SECRET])
@pytest.mark.parametrize("step", [1, 1 << 20, 1 << 48])
def test_no_step_between_keys_puts_many_in_one_bucket(secret, step):
    table, keys = RowTable(10_000, secret), np.arange(1, 10_001, dtype=np.uint64) * np.uint64(step)
    table.put(keys, 1)
    assert np.bincount(table._bucket(keys)).max() < 20  # noqa: SLF001  otherwise, only the time shows it


def test_full_table_forgets_what_was_used_longest_ago():
    table = RowTable(1_000, SECRET)
    for now, start in enumerate(range(0, 5_000, 100), start=1):
        table.put(np.arange(start + 1, start + 101, dtype=np.uint64), now)
        assert table.count <= 1_000
    assert table.count == 1_000
    newest = table.find(np.arange(4_901, 5_001, dtype=np.uint64))
    assert (newest >= 0).all()
    old = table.find(np.arange(1, 3_001, dtype=np.uint64))
    assert np.count_nonzero(old >= 0) < 150  # a sample decides, not the whole order


def test_blocks_that_are_looked_up_stay():
    table = RowTable(1_000, SECRET)
    hot = np.arange(1, 101, dtype=np.uint64)
    table.put(hot, 1)
    for now, start in enumerate(range(1_000, 20_000, 100), start=2):
        table.used[table.find(hot)] = now
        table.put(np.arange(start, start + 100, dtype=np.uint64), now)
    assert (table.find(hot) >= 0).all()


def test_more_keys_than_fit_in_one_call_are_not_all_kept():
    table = RowTable(100, SECRET)
    rows = table.put(np.arange(1, 201, dtype=np.uint64), 1)
    assert table.count == 100
    assert np.count_nonzero(rows >= 0) == 100
