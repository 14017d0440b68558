# SPDX-License-Identifier: Apache-2.0
"""Endpoints close to the peer, or all."""

import numpy as np
import pytest

from epp.framework import Request, Topology
from epp.framework.input_errors import ParameterError, read_parameters
from epp.framework.snapshot import TOPOLOGY
from epp.framework.testing import candidates
from epp.plugins.filters.topology import TopologyAffinityFilter, TopologyAffinityFilterParameters

POOL = candidates(
    records={
        TOPOLOGY: [
            Topology("h1", "r1", "z1", "eu"),  # 0, the peer
            Topology("h1", "r1", "z1", "eu"),
            Topology("h2", "r1", "z1", "eu"),
            Topology("h3", "r2", "z1", "eu"),
            Topology("h4", "r3", "z2", "eu"),
            Topology("h5", "r4", "z3", "us"),
            Topology(),
        ]
    }
)
PREFILLERS = POOL.keep(np.array([False, True, True, True, True, True, True]))

REQUEST = Request("r")


def kept(peer, pool=PREFILLERS, **parameters):
    plugin = TopologyAffinityFilter(TopologyAffinityFilterParameters(**parameters))
    return plugin.filter(REQUEST, pool.within("prefill", peer)).tolist()


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        ("host", [True, False, False, False, False, False]),
        ("rack", [True, True, False, False, False, False]),
        ("zone", [True, True, True, False, False, False]),
        ("region", [True, True, True, True, False, False]),
    ],
)
def test_that_level_or_closer_stays(level, expected):
    assert kept(0, min_affinity=level) == expected


def test_same_host_is_wanted_by_default():
    assert kept(0) == kept(0, min_affinity="host")


def test_none_close_enough_keeps_all():
    assert kept(5, min_affinity="zone", pool=PREFILLERS.keep(np.arange(6) < 4)) == [True] * 4


def test_peer_whose_place_is_not_known_keeps_all():
    assert kept(6, min_affinity="region") == [True] * 6


def test_no_peer_keeps_all():
    assert kept(None) == [True] * 6


def test_unknown_level_is_refused():
    with pytest.raises(ParameterError, match="'row' is not known; use 'host', 'rack', 'zone', 'region'"):
        read_parameters(TopologyAffinityFilterParameters, {"minAffinity": "row"})


def test_gie_8_cluster_is_the_widest_level():
    pool = candidates(records={TOPOLOGY: [Topology(cluster=name) for name in ("east", "east", "west")]})
    assert kept(0, pool, min_affinity="cluster") == [True, True, False]
    assert kept(0, pool, min_affinity="region") == [True] * 3
