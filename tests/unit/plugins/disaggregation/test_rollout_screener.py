# SPDX-License-Identifier: Apache-2.0
"""Requests stay within one revision while another is rolled out."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.framework import Candidates, Endpoint, Headers, ManualClock, Request, Response
from epp.framework.plugin import Stability
from epp.framework.snapshot import REFUSES
from epp.plugins.rollout import DisaggregatedSetRolloutScreener, shares
from epp.routing.datastore import Datastore
from tests.support.plugins import built

SET, REVISION, ROLE = (f"disaggregatedset.x-k8s.io/{name}" for name in ("name", "revision", "role"))
SLICE = "disaggregatedset.x-k8s.io/slice"
SCOPE = {"labelSelector": f"{SET}=my-set"}
BY_REVISION = {"name": "revision", "headerName": "X-Disagg-Revision", "labelKey": REVISION, "mode": "strict"}
BY_SLICE = {"name": "slice", "headerName": "x-disagg-slice", "labelKey": SLICE, "mode": "strict"}
PREFILL_DECODE = {"mode": "sum", "requireRoles": {"values": ["prefill", "decode"]}}


def screener(**parameters) -> DisaggregatedSetRolloutScreener:
    given_parameters = {"scope": SCOPE, "headerSelectors": [BY_REVISION], "revisionGating": PREFILL_DECODE} | parameters
    return built(DisaggregatedSetRolloutScreener, given_parameters)


def member(name: str, revision: str = "", role: str = "", *, scope: str = "my-set", uid: str = "", **more) -> Endpoint:
    labels = {SET: scope, REVISION: revision, ROLE: role, **more}
    number = sum(map(ord, name)) % 200 + 1
    return Endpoint(
        name, f"10.0.0.{number}", 8000, uid=uid, labels={key: value for key, value in labels.items() if value}
    )


def members(**counts: tuple[int, int]) -> list[Endpoint]:
    """Return a pool with these numbers of prefill and decode endpoints for each revision."""
    return [
        member(f"{revision}-{role}-{number}", revision, role)
        for revision, (prefill, decode) in counts.items()
        for role, count in (("prefill", prefill), ("decode", decode))
        for number in range(count)
    ]


def pool(*endpoints: Endpoint) -> Candidates:
    store = Datastore(ManualClock())
    store.replace(endpoints)
    return everyone(store)


def everyone(store: Datastore) -> Candidates:
    snapshot = store.snapshot()
    return Candidates(snapshot, snapshot.available)


def request(seed: int = 0, **headers: str) -> Request:
    return Request(
        "r", seed=seed, headers=Headers([(name.replace("_", "-"), value) for name, value in headers.items()])
    )


def kept(plugin: DisaggregatedSetRolloutScreener, candidates: Candidates, asked: Request | None = None) -> set[str]:
    return {endpoint.name for endpoint in left(plugin, candidates, asked)}


def revisions(
    plugin: DisaggregatedSetRolloutScreener, candidates: Candidates, asked: Request | None = None
) -> set[str]:
    return {endpoint.labels[REVISION] for endpoint in left(plugin, candidates, asked)}


def left(plugin: DisaggregatedSetRolloutScreener, candidates: Candidates, asked: Request | None) -> list[Endpoint]:
    return candidates.keep(plugin.mask(asked or request(), candidates)).endpoints


def picked(plugin: DisaggregatedSetRolloutScreener, candidates: Candidates, requests: int = 2000) -> dict[str, float]:
    """Return the share of requests that each revision gets."""
    found: Counter[str] = Counter()
    for seed in range(requests):
        (revision,) = revisions(plugin, candidates, request(seed))
        found[revision] += 1
    return {revision: count / requests for revision, count in found.items()}


def values(plugin: DisaggregatedSetRolloutScreener, name: str) -> dict[tuple[str, ...], float]:
    return {sample.labels: sample.value for sample in plugin.samples if sample.metric.name == name}


def test_it_is_experimental():
    assert DisaggregatedSetRolloutScreener.stability is Stability.ALPHA


def test_revision_without_a_required_role_gets_nothing():
    candidates, plugin = pool(*members(old=(2, 8), new=(0, 2))), screener()
    assert all(revisions(plugin, candidates, request(seed)) == {"old"} for seed in range(100))
    # an endpoint beyond the scope lends it no role
    foreign = member("foreign", "new", "prefill", scope="another-set")
    assert revisions(plugin, pool(*members(old=(1, 1), new=(0, 3)), foreign)) == {"old"}


PLAIN = member("plain", scope="")
UNGATED = {"revisionGating": {"mode": "disabled"}}
PREFERRED = {"headerSelectors": [{**BY_SLICE, "mode": "prefer"}]}
SLICED = [member("p", "old", "prefill", **{SLICE: "0"}), member("d", "old", "decode", **{SLICE: "1"})]
OLD = {"old-prefill-0", "old-decode-0"}


@pytest.mark.parametrize(
    ("parameters", "endpoints", "headers", "expected"),
    [
        # all of the chosen revision are kept, whatever their role
        ({}, members(old=(1, 2), new=(0, 1)), {}, OLD | {"old-decode-1"}),
        # endpoints without a revision get nothing while revisions are gated
        ({}, [*members(old=(1, 1)), PLAIN], {}, OLD),
        (UNGATED, [*members(old=(1, 1)), PLAIN], {}, OLD | {"plain"}),
        # no revision is complete
        ({}, members(old=(1, 0), new=(0, 1)), {}, set()),
        ({}, [PLAIN], {}, set()),
        ({}, [], {}, set()),
        # an empty header counts as none, and a preferred one excludes none
        ({}, members(old=(1, 1)), {"x_disagg_revision": ""}, OLD),
        (PREFERRED, SLICED, {"x_disagg_slice": "1"}, {"p", "d"}),
        # without gating only strict headers exclude
        (UNGATED, members(old=(1, 0), new=(0, 1)), {}, {"old-prefill-0", "new-decode-0"}),
        (UNGATED, members(old=(1, 0), new=(0, 1)), {"x_disagg_revision": "new"}, {"new-decode-0"}),
    ],
)
def test_endpoints_of_a_complete_revision_that_match_strict_headers_are_kept(parameters, endpoints, headers, expected):
    plugin = screener(**parameters)
    assert kept(plugin, pool(*endpoints), request(**headers)) == expected
    assert not sum(values(plugin, "disaggregatedset_strict_header_no_match").values())
    gated = "revisionGating" not in parameters
    assert gated or not values(plugin, "disaggregatedset_revision_gating_share")


def test_one_request_gets_one_revision_however_often_it_is_asked_for():
    plugin, candidates = screener(), pool(*members(old=(1, 1), new=(1, 1)))
    for seed in range(50):
        first = revisions(plugin, candidates, request(seed))
        assert len(first) == 1
        assert revisions(plugin, candidates, request(seed)) == first


@pytest.mark.parametrize(
    ("mode", "old_share"),
    [
        ("sum", 11 / 13),  # 2 + 9 of 11 + 2
        ("max-role", 0.9),  # 10 decode in all against 3 prefill: 9 of 10
    ],
)
def test_shares_follow_the_pods(mode, old_share):
    plugin = screener(revisionGating={**PREFILL_DECODE, "mode": mode})
    found = picked(plugin, pool(*members(old=(2, 9), new=(1, 1))))
    assert found["old"] == pytest.approx(old_share, abs=0.03)  # 4 standard deviations of 2,000 draws
    shown = values(plugin, "disaggregatedset_revision_gating_share")
    assert shown == {(mode, "old"): pytest.approx(old_share), (mode, "new"): pytest.approx(1 - old_share)}


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        # of two roles with as many pods, the first one counts
        ([[3, 1], [1, 3]], [0.75, 0.25]),
        ([[1, 3], [3, 1]], [0.25, 0.75]),
        # a revision that lacks a role does not decide: prefill: 3 in complete revisions, decode: 2
        ([[2, 1], [0, 9], [1, 1]], [2 / 3, 0, 1 / 3]),
    ],
)
def test_largest_role_is_that_of_the_complete_revisions(counts, expected):
    assert shares(np.array(counts), by_largest_role=True).tolist() == pytest.approx(expected)


def test_ranks_of_one_pod_count_once():
    ranks = [member(f"old-d-rank-{rank}", "old", "decode", uid="d") for rank in range(8)]
    others = [member("old-p", "old", "prefill", uid="p"), *members(new=(1, 1))]
    plugin = screener()
    plugin.screen(request(), pool(*ranks, *others))
    assert set(values(plugin, "disaggregatedset_revision_gating_share").values()) == {0.5}  # two pods each


def test_endpoints_that_refuse_connections_do_not_count():
    store = Datastore(ManualClock())
    store.replace(members(old=(1, 1), new=(1, 1)))
    plugin = screener()
    assert len({frozenset(revisions(plugin, everyone(store), request(seed))) for seed in range(50)}) == 2
    store.mark(members(new=(1, 0))[0], REFUSES)
    assert all(revisions(plugin, everyone(store), request(seed)) == {"old"} for seed in range(50))


def test_rollout_moves_shares_as_the_pool_changes():
    store, plugin = Datastore(ManualClock()), screener()
    seen = []
    for old, new in (((2, 8), (0, 2)), ((1, 4), (1, 4)), ((0, 0), (2, 10))):
        store.replace(members(old=old, new=new))
        plugin.screen(request(), everyone(store))
        shown = values(plugin, "disaggregatedset_revision_gating_share")
        seen.append((shown.get(("sum", "old")), shown.get(("sum", "new"))))
    assert seen == [(1.0, 0.0), (0.5, 0.5), (None, 1.0)]


def test_gateways_subset_leaves_the_shares_of_the_rest():
    plugin, candidates = screener(), pool(*members(old=(1, 1), new=(1, 1)))
    of_old = candidates.keep(np.array([e.labels[REVISION] == "old" for e in candidates.endpoints]))
    assert all(revisions(plugin, of_old, request(seed)) == {"old"} for seed in range(20))


def test_strict_header_keeps_its_revision_alone():
    plugin, candidates = screener(), pool(*members(old=(9, 9), new=(1, 1)))
    asked = [request(seed, x_disagg_revision="new") for seed in range(20)]
    assert all(revisions(plugin, candidates, each) == {"new"} for each in asked)


@pytest.mark.parametrize("wanted", ["gone", "new", "\udcff"])
def test_strict_header_that_nobody_matches_leaves_nobody_and_is_counted(wanted):
    plugin, candidates = screener(), pool(*members(old=(1, 1), new=(0, 1)))  # `new` cannot serve yet
    assert kept(plugin, candidates, request(x_disagg_revision=wanted)) == set()
    assert values(plugin, "disaggregatedset_strict_header_no_match") == {("revision",): 1}


def test_strict_header_of_another_label_leaves_one_revision_among_those_that_match():
    endpoints = [
        member(f"{revision}-{role}-{part}", revision, role, **{SLICE: part})
        for revision in ("old", "new")
        for role in ("prefill", "decode")
        for part in ("0", "1")
    ]
    plugin = screener(headerSelectors=[BY_REVISION, BY_SLICE])
    seen = {frozenset(kept(plugin, pool(*endpoints), request(seed, x_disagg_slice="1"))) for seed in range(50)}
    assert seen == {frozenset({"old-prefill-1", "old-decode-1"}), frozenset({"new-prefill-1", "new-decode-1"})}


def test_labels_of_the_endpoint_that_served_are_response_headers():
    plugin = screener(headerSelectors=[BY_REVISION, {**BY_SLICE, "mode": "prefer"}])
    served = member("d", "old", "decode", **{SLICE: "1"})
    assert plugin.response_headers(request(), Response(served)) == {"x-disagg-revision": "old", "x-disagg-slice": "1"}
    assert plugin.response_headers(request(), Response(member("plain"))) == {}
    odd = Endpoint("odd", "10.0.0.1", 1, labels={REVISION: "a\r\nset-cookie: x"})
    assert plugin.response_headers(request(), Response(odd)) == {}


labelled = st.tuples(
    st.sampled_from(["", "a", "b", "c"]),
    st.sampled_from(["", "prefill", "decode", "encode"]),
    st.sampled_from(["my-set", "another"]),
    st.sampled_from(["", "u1", "u2"]),
)


@given(
    st.lists(labelled, max_size=12),
    st.integers(0, 2**32),
    st.sampled_from(["", "a", "b", "x"]),
    st.sampled_from(["sum", "max-role"]),
)
def test_whatever_the_pool_one_complete_revision_is_kept_or_nothing(labels, seed, wanted, mode):
    endpoints = [
        member(f"e{number}", revision, role, scope=scope, uid=uid)
        for number, (revision, role, scope, uid) in enumerate(labels)
    ]
    complete = {
        revision
        for revision in "abc"
        if {"prefill", "decode"}
        <= {e.labels.get(ROLE) for e in endpoints if e.labels.get(REVISION) == revision and e.labels[SET] == "my-set"}
    }
    candidates = pool(*endpoints)
    plugin = screener(revisionGating={**PREFILL_DECODE, "mode": mode})
    found = left(plugin, candidates, request(seed, x_disagg_revision=wanted))
    chosen = {e.labels[REVISION] for e in found}
    allowed = complete & {wanted} if wanted else complete
    assert len(chosen) == (1 if allowed else 0)
    assert chosen <= allowed
    assert [e.name for e in found] == [e.name for e in candidates.endpoints if e.labels.get(REVISION) in chosen]
