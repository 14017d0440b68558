# SPDX-License-Identifier: Apache-2.0
"""Columns are known by their names."""

from epp.framework import Column
from epp.framework.snapshot import WAITING, column_named


def test_column_is_equal_to_another_of_its_name_although_nan_is_equal_to_nothing():
    assert Column("depth", "m") == Column("depth", "m")
    assert len({Column("depth", "m"), Column("depth", "m", 0.0)}) == 1
    assert Column("depth", "m") != Column("depth", "km")


def test_core_column_is_found_by_its_name_and_any_other_is_made():
    assert column_named("waiting") is WAITING
    assert column_named("depth") == Column("depth", "")
