# SPDX-License-Identifier: Apache-2.0
"""Conformance tests: choice of endpoints by a header, and report of the endpoint that the gateway used."""

import numpy as np
import pytest

from epp.framework import Candidates, Endpoint, Headers, Records, Request, Response, Snapshot
from epp.framework.testing import candidates
from epp.plugins.request_control import HeaderBasedTestingFilter, ServedVerifier

ENDPOINTS = (
    Endpoint("a", "10.0.0.1", 8000),
    Endpoint("b", "10.0.0.1", 8001),
    Endpoint("c", "10.0.0.2", 8000),
    Endpoint("d", "2001:db8::1", 8000),
    None,
    Endpoint("e", "2001:DB8:0:0::2", 8000),
)
SLOTS = np.array([0, 1, 2, 3, 5], dtype=np.intp)
POOL = Candidates(Snapshot(slots=SLOTS, available=SLOTS, endpoints=Records(ENDPOINTS)), SLOTS)
HEADER = "test-epp-endpoint-selection"


def kept(*values, pool=POOL):
    request = Request("r", headers=Headers([(HEADER, value) for value in values]))
    mask = HeaderBasedTestingFilter().filter(request, pool)
    return "".join(endpoint.name for endpoint in pool.keep(mask).endpoints)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["10.0.0.1:8001"], "b"),
        (["10.0.0.1"], "ab"),
        (["10.0.0.2:8000, 10.0.0.1:8000"], "ac"),
        (["2001:db8::1"], "d"),
        (["[2001:db8::1]:8000"], "d"),
        (["[2001:db8::1]"], "d"),
        (["2001:0db8:0::0001"], "d"),
        (["[2001:DB8::2]:8000"], "e"),
        (["[2001:db8::1]:8001"], ""),
        (["10.0.0.9"], ""),
        (["10.0.0.1:"], "ab"),
        (["not an address,10.0.0.2"], "c"),
        (["["], ""),
        ([""], ""),
        ([","], ""),
        (["10.0.0.1:8000", "10.0.0.2"], "ac"),  # several headers are one list
        ([], ""),
    ],
)
def test_listed_endpoints_stay(values, expected):
    assert kept(*values) == expected


def test_endpoint_that_is_no_longer_a_candidate_does_not_come_back():
    assert kept("10.0.0.1", pool=POOL.keep(np.array([False, True, True, True, True]))) == "b"


def test_served_endpoint_is_what_the_gateway_says_not_what_was_chosen():
    verifier, chosen = ServedVerifier(), candidates(waiting=[0])[0]
    header = "x-conformance-test-served-endpoint"
    assert verifier.response_headers(Request("r"), Response(chosen, "10.9.9.9:80")) == {header: "10.9.9.9:80"}
    assert verifier.response_headers(Request("r"), Response(chosen)) == {header: "no served metadata"}
