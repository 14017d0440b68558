# SPDX-License-Identifier: Apache-2.0
"""What ties a session to an endpoint, as examples and against a naive model."""

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from epp.framework.endpoint import Identity
from epp.framework.input_errors import ParameterError, read_parameters
from epp.framework.session_affinity import Bindings, Conversations, SessionIds, decode_endpoint, encode_endpoint

TTL, SWEEP, LIMIT = 10.0, 3.0, 3
A, B, C = (Identity(f"default/{name}", "10.0.0.1:8000", uid=name) for name in "abc")


def bindings(limit=LIMIT):
    return Bindings(ttl_seconds=TTL, sweep_seconds=SWEEP, limit=limit)


def test_session_belongs_to_the_endpoint_bound_last_until_a_ttl_after_its_last_use():
    store = bindings()
    store.bind("s", A, 0.0)
    store.bind("s", B, 0.0)
    assert store.find("t", 1.0) is None
    assert store.find("s", 9.0) == B
    assert store.find("s", 18.0) == B  # 9 s after the last use
    assert store.find("s", 28.0) is None  # 10 s after it


def test_least_recently_used_session_makes_room():
    store = bindings(limit=2)
    store.bind("s", A, 0.0)
    store.bind("t", B, 1.0)
    store.find("s", 2.0)
    store.bind("u", C, 3.0)
    assert [store.find(session, 3.0) for session in "stu"] == [A, None, C]


def test_expired_sessions_give_their_memory_back_in_the_next_round_and_none_comes_sooner_than_the_interval():
    store = bindings()
    store.bind("s", A, 0.0)
    store.find("t", 9.0)  # a round, in which s had a second left
    store.find("t", 11.0)
    assert len(store) == 1
    store.find("t", 12.0)
    assert len(store) == 0


def test_long_session_ids_take_no_more_memory_than_short_ones():
    store = bindings()
    store.bind("s" * 100_000, A, 0.0)
    assert store.find("s" * 100_000, 1.0) == A
    assert all(len(key) == 16 for key in store._bound)


class BindingsAgainstModel(RuleBasedStateMachine):
    """The model: a list of (session, endpoint, last use), least recently used first, none expired, none over."""

    sessions = st.sampled_from("stuvw")

    def __init__(self):
        super().__init__()
        self.now = 0.0
        self.store = bindings()
        self.model = []

    def live(self):
        return [entry for entry in self.model if self.now - entry[2] < TTL]

    def used(self, session, endpoint):
        rest = [entry for entry in self.live() if entry[0] != session]
        self.model = [*rest, (session, endpoint, self.now)][-LIMIT:]

    @rule(seconds=st.sampled_from([0.0, 0.5, 1.0, 4.0, 9.5, 10.0, 25.0]))
    def time_passes(self, seconds):
        self.now += seconds

    @rule(session=sessions, endpoint=st.sampled_from([A, B]))
    def bind(self, session, endpoint):
        self.store.bind(session, endpoint, self.now)
        self.used(session, endpoint)

    @rule(session=sessions)
    def find(self, session):
        expected = next((endpoint for name, endpoint, _ in self.live() if name == session), None)
        assert self.store.find(session, self.now) == expected
        if expected is not None:
            self.used(session, expected)

    @invariant()
    def memory_is_bounded(self):
        assert len(self.live()) <= len(self.store) <= LIMIT

    @invariant()
    def order_is_that_of_use(self):
        moments = [used_at for _, used_at in self.store._bound.values()]
        assert moments == sorted(moments)


TestBindingsAgainstModel = BindingsAgainstModel.TestCase


def test_prompt_continues_the_conversation_that_its_blocks_began_with():
    conversations = Conversations()
    conversations.note([1, 2, 3], 7)  # 3 may be shorter than a block
    assert conversations.find([1, 2, 4, 5]) == (7, 2)
    conversations.note([1, 2, 4, 5], 8)
    assert conversations.find([1, 2, 4, 6]) == (8, 3)
    assert conversations.find([1, 2, 9]) == (7, 2)
    assert conversations.find([5, 6]) == (-1, 0) == conversations.find([])


def test_oldest_half_of_conversations_makes_room():
    conversations = Conversations(limit=4)
    for block in range(5):
        conversations.note([block, 0], block)
    assert len(conversations) == 3
    assert [conversations.find([block])[0] for block in range(5)] == [-1, -1, 2, 3, 4]


def test_prompt_that_failed_and_endpoints_that_left_are_forgotten():
    conversations = Conversations()
    conversations.note([1, 0], 7)
    conversations.withdraw([1, 0], 8)
    assert conversations.find([1]) == (7, 1)
    conversations.withdraw([1, 0], 7)
    assert conversations.find([1]) == (-1, 0)
    for block in range(4):
        conversations.note([block, 0], block)
    conversations.forget(1, 2)
    assert [conversations.find([block])[0] for block in range(4)] == [0, -1, -1, 3]


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), max_size=40), st.integers(2, 8))
def test_latest_conversations_are_known_and_no_more_than_the_limit(noted, limit):
    conversations, last = Conversations(limit), {}
    for block, endpoint in noted:
        conversations.note([block, 99], endpoint)
        last.pop(block, None)
        last[block] = endpoint
        assert len(conversations) <= limit
        for recent, expected in list(last.items())[-(limit // 2) :]:
            assert conversations.find([recent]) == (expected, 1)


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
def test_token_of_an_endpoint_leads_back_to_it(endpoint):
    assert decode_endpoint(encode_endpoint(endpoint)) == endpoint


def test_token_is_the_base64_of_namespace_and_name():
    assert encode_endpoint("default/e1") == "ZGVmYXVsdC9lMQ=="


@pytest.mark.parametrize("token", ["", "default/e1", "ZGVmYXVsdC9lMQ", "é", base64.b64encode(b"\xff").decode()])
def test_malformed_token_counts_as_none(token):
    assert decode_endpoint(token) is None


@given(st.text())
def test_no_token_raises(token):
    decode_endpoint(token)


@pytest.mark.parametrize(
    ("parameters", "sentence"),
    [
        ({"sources": [{}]}, "either a header or an attribute"),
        ({"sources": [{"header": "a", "attribute": "session-id"}]}, "either a header or an attribute"),
        ({"sources": [{"header": "a", "producer": "p"}]}, "header 'a' .* has a producer; remove it"),
        (
            {"sources": [{"attribute": "user"}]},
            "'user' is not known; use 'session-id', 'SessionID', 'SessionIDDataKey', 'agent-identity'",
        ),
        ({"evictionTtlSeconds": -1}, "evictionTtlSeconds is -1; it must be above 0"),
        ({"evictionSweepSeconds": -1}, "evictionSweepSeconds is -1; it must be above 0"),
        ({"maxSessions": 0}, "maxSessions is 0; it must be at least 1"),
    ],
)
def test_session_ids_that_cannot_be_found_or_kept_are_refused(parameters, sentence):
    with pytest.raises(ParameterError, match=sentence):
        read_parameters(SessionIds, parameters)
