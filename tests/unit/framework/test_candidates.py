# SPDX-License-Identifier: Apache-2.0
"""Candidates: their columns, and their closeness to an endpoint."""

import numpy as np

from epp.framework import Column, Topology
from epp.framework.candidates import FAR, LEVELS, closeness
from epp.framework.snapshot import TOPOLOGY, WAITING, column_named
from epp.framework.testing import candidates


def test_column_is_equal_to_another_of_its_name_although_nan_is_equal_to_nothing():
    assert Column("depth", "m") == Column("depth", "m")
    assert len({Column("depth", "m"), Column("depth", "m", 0.0)}) == 1
    assert Column("depth", "m") != Column("depth", "km")


def test_core_column_is_found_by_its_name_and_any_other_is_made():
    assert column_named("waiting") is WAITING
    assert column_named("depth") == Column("depth", "")


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


def names(levels):
    return [(*LEVELS, "far")[level] for level in levels]


def test_closest_shared_level_is_the_closeness():
    assert names(closeness(POOL, 0)) == ["host", "host", "rack", "zone", "region", "far", "far"]


def test_what_is_not_known_is_shared_with_nobody_itself_included():
    assert closeness(POOL, 6).tolist() == [FAR] * 7


def test_level_that_is_not_known_is_passed_over():
    pool = candidates(records={TOPOLOGY: [Topology(zone="z1"), Topology("h1", "", "z1"), Topology("", "", "", "eu")]})
    assert names(closeness(pool, 0)) == ["zone", "zone", "far"]


def test_names_of_different_levels_are_different_places():
    pool = candidates(records={TOPOLOGY: [Topology(host="a"), Topology(rack="a")]})
    assert names(closeness(pool, 0)) == ["host", "far"]


def test_answers_follow_the_candidates_and_the_peer_need_not_be_among_them():
    narrowed = POOL.keep(np.array([False, False, False, True, True, True, False]))
    assert names(closeness(narrowed, 0)) == ["zone", "region", "far"]


def test_without_any_report_everybody_is_far():
    assert closeness(candidates(waiting=[0, 0]), 0).tolist() == [FAR, FAR]
