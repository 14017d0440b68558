"""What it is worth to stand near the peer."""

import numpy as np
import pytest

from epp.framework import ConfigurationError, ManualClock, ProfileResult, Request, Topology
from epp.framework.registry import Registry
from epp.framework.request import PEER
from epp.framework.snapshot import TOPOLOGY
from epp.framework.testing import candidates
from scorers.topology_affinity import TopologyAffinityScorer

POOL = candidates(
    records={
        TOPOLOGY: [
            Topology("h1", "r1", "z1", "eu"),
            Topology("h1", "r1", "z1", "eu"),
            Topology("h2", "r1", "z1", "eu"),
            Topology("h3", "r2", "z1", "eu"),
            Topology("h4", "r3", "z2", "eu"),
            Topology("h5", "r4", "z3", "us"),
            Topology(),
        ]
    }
)


def build(**parameters):
    registry = Registry({})
    registry.register(TopologyAffinityScorer)
    return registry.build("topology-affinity-scorer", parameters, name="mine", clock=ManualClock())


def near(slot):
    request = Request("r")
    request.put(PEER, ProfileResult("decode", POOL, np.zeros(len(POOL)), np.array([slot], dtype=np.intp)))
    return request


def test_closest_shared_level_decides():
    assert build().score(near(0), POOL).tolist() == [1.0, 1.0, 0.2, 0.05, 0.02, 0.0, 0.0]


def test_weights_can_be_set_one_by_one():
    scorer = build(weights={"rack": 0.9, "region": 0})
    assert scorer.score(near(0), POOL).tolist() == [1.0, 1.0, 0.9, 0.05, 0.0, 0.0, 0.0]


def test_no_peer_gives_zero_for_all():
    assert build().score(Request("r"), POOL).tolist() == [0.0] * 7


def test_peer_whose_place_is_not_known_gives_zero_for_all():
    assert build().score(near(6), POOL).tolist() == [0.0] * 7


def test_peer_need_not_be_a_candidate():
    assert build().score(near(0), POOL.keep(np.arange(7) >= 3)).tolist() == [0.05, 0.02, 0.0, 0.0]


def test_weight_outside_its_range_is_refused():
    with pytest.raises(ConfigurationError, match=r"weight of rack is 2\.0; it must be between 0 and 1"):
        build(weights={"rack": 2})
