# SPDX-License-Identifier: Apache-2.0
import pytest

from epp.framework import Request
from epp.framework.accelerators.selection import ACCELERATOR_SELECTION, Selection, Selections
from epp.framework.accelerators.tag import AcceleratorKind, AcceleratorTag, Partition, Sharing
from epp.framework.errors import ConfigurationError
from epp.framework.testing import candidates
from epp.plugins.selection_filters import MigProfileFilter
from tests.support.plugins import built

GIB = 2**30


def a_slice(profile, slices, gib):
    part = Partition(kind=Sharing.MIG, profile=profile, compute_slices=slices, compute_fraction=slices / 7)
    return AcceleratorTag(kind=AcceleratorKind.GPU, count=1, memory_bytes=gib * GIB, partition=part)


FLEET = {
    "1g": a_slice("1g.5gb", 1, 5),
    "1g+me": a_slice("1g.5gb+me", 1, 5),
    "3g": a_slice("3g.20gb", 3, 20),
    "whole": AcceleratorTag(kind=AcceleratorKind.GPU, count=1, memory_bytes=40 * GIB),
    "shared": AcceleratorTag(
        kind=AcceleratorKind.GPU,
        count=1,
        memory_bytes=16 * GIB,
        partition=Partition(kind=Sharing.TIME_SLICING, compute_fraction=0.25, sharers=4),
    ),
    "slice": AcceleratorTag(kind=AcceleratorKind.GPU, partition=Partition(kind=Sharing.MIG)),
    "unknown": AcceleratorTag(),
    "cpu": AcceleratorTag(kind=AcceleratorKind.CPU),
}


def build(**parameters):
    return built(MigProfileFilter, parameters)


def kept(request=None, /, **parameters):
    pool = candidates(accelerators=list(FLEET.values()))
    mask = build(**parameters).filter(request or Request("r"), pool)
    return [name for name, stays in zip(FLEET, mask, strict=True) if stays]


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({"allow": ["nvidia.com/mig-3g.20gb", "mig.das.com/1g.5gb-plus-me"]}, ["1g+me", "3g"]),
        ({"deny": ["nvidia.com/mig-1g.5gb"]}, ["1g+me", "3g", "whole", "shared"]),
        ({"minMemory": "20Gi"}, ["3g", "whole"]),
        ({"minComputeSlices": 3}, ["3g", "whole"]),  # the shared one has 7 / 4
        ({"wholeDeviceOnly": True}, ["whole"]),
        ({"allow": ["3g.20gb"], "onUnknown": "Pass"}, ["3g", "slice", "unknown"]),
        ({"minComputeSlices": 1, "onUnknown": "Pass"}, ["1g", "1g+me", "3g", "whole", "shared", "slice", "unknown"]),
        ({}, list(FLEET)),
    ],
)
def test_is_6_keeps_slices_by_profile_and_size(parameters, expected):
    assert kept(**parameters) == expected


@pytest.mark.parametrize(
    ("name", "parameters", "reason"),
    [
        ("whole", {"allow": ["3g.20gb"]}, "MIG profile none is not among 3g.20gb"),
        ("1g", {"deny": ["1g.5gb"]}, "MIG profile 1g.5gb is excluded"),
        ("1g", {"minComputeSlices": 3}, "1 compute slices are fewer than 3"),
        ("shared", {"wholeDeviceOnly": True}, "is not a whole device but shared by time-slicing"),
        ("cpu", {"deny": ["1g.5gb"]}, "no-accelerator"),
    ],
)
def test_is_6_each_dropped_slice_has_a_reason(name, parameters, reason):
    assert build(**parameters).rejection(Request("r"), FLEET[name]) == reason


def test_is_6_the_selection_of_the_request_holds_too():
    request = Request("r")
    request.put(ACCELERATOR_SELECTION, Selections(Selection(mig_profiles=("3g.20gb", "1g.5gb"))))
    assert kept(request, deny=["1g.5gb"]) == ["3g"]


def test_is_6_malformed_profiles_and_bounds_that_keep_none_are_refused():
    with pytest.raises(ConfigurationError, match="allow has '3g20', which is not a MIG profile"):
        build(allow=["3g20"])
    with pytest.raises(ConfigurationError, match=r"deny and allow both have '3g\.20gb': leave it out of one of them"):
        build(allow=["3g.20gb"], deny=["mig-3g.20gb"])
    with pytest.raises(ConfigurationError, match="allow keeps only slices and wholeDeviceOnly drops them"):
        build(allow=["3g.20gb"], wholeDeviceOnly=True)
