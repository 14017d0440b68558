# SPDX-License-Identifier: Apache-2.0
"""The priority of a request in its body."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.routing.bodies.model_member import with_priority

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize(
    ("body", "sent"),
    [
        (b'{"model":"m"}', b'{"priority":-3,"model":"m"}'),
        (b" { }", b' {"priority":-3 }'),
        (b'{"priority": 7, "model":"m"}', b'{"priority": -3, "model":"m"}'),
        (b'{"a":{"priority":1},"priority":{"b":[1]}}', b'{"a":{"priority":1},"priority":-3}'),
        (b'{"priority":1,"\\u0070riority":"2"}', b'{"priority":-3,"\\u0070riority":-3}'),
    ],
)
def test_every_priority_of_a_client_is_replaced(body, sent):
    assert with_priority(body, -3) == sent


@pytest.mark.parametrize("body", [b"", b"[1]", b"\x00\x00", b'{"model":"m"', b'{"priority":1} x'])
def test_other_bodies_stay(body):
    assert with_priority(body, 5) == body


@given(st.dictionaries(st.text(max_size=9), JSON, max_size=4), st.integers(-(10**9), 10**9))
def test_only_the_priority_changes(content, priority):
    sent = json.loads(with_priority(json.dumps(content).encode(), priority))
    assert sent == content | {"priority": priority}
