# SPDX-License-Identifier: Apache-2.0
"""The table against a dict."""

from hypothesis import given
from hypothesis import strategies as st

from epp.plugins.prefix_cache.int_table import IntTable

KEYS = st.one_of(st.integers(0, 2**64 - 1), st.integers(0, 300), st.integers(0, 40).map(lambda n: n << 8))
VALUES = st.integers(-(2**31), 2**31 - 1)
STEPS = st.lists(st.tuples(KEYS, st.one_of(st.none(), VALUES)), max_size=400)


@given(STEPS)
def test_table_is_a_dict(steps):
    table, model = IntTable(), {}
    for key, value in steps:
        if value is None:
            assert table.pop(key, 7) == model.pop(key, 7)
        else:
            table.put(key, value)
            model[key] = value
        assert len(table) == len(model)
    assert {key: table.get(key) for key in model} == model
    assert all(table.get(key, 7) == model.get(key, 7) for key, _ in steps)


def test_keys_that_run_on_and_come_and_go_are_found_however_far_the_table_grows():
    table = IntTable()
    for key in range(20_000):
        table.put(key, key // 2)
        if key >= 10_000:
            assert table.pop(key - 10_000) == (key - 10_000) // 2
    assert len(table) == 10_000
    assert [table.get(key) for key in (0, 9_999, 10_000, 19_999, 20_000)] == [-1, -1, 5_000, 9_999, -1]
