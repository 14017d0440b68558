# SPDX-License-Identifier: Apache-2.0
import pytest

from epp.framework.quantities import canonical_mig_name, compute_slices


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("3g.20gb", "3g.20gb"),
        ("nvidia.com/mig-3g.20gb", "3g.20gb"),
        ("instaslice.redhat.com/mig-3g.20gb", "3g.20gb"),
        ("mig-3g.20gb", "3g.20gb"),
        ("NVIDIA-A100-SXM4-40GB-MIG-3g.20gb", "3g.20gb"),
        ("NVIDIA-A100-SXM4-40GB-MIG-3g.20gb-SHARED", "3g.20gb"),
        ("1g.5gb+me", "1g.5gb+me"),
        ("nvidia.com/mig-1g.5gb.me", "1g.5gb+me"),
        ("mig.das.com/1g.5gb-plus-me", "1g.5gb+me"),
        ("1g.24gb+me.all", "1g.24gb+me.all"),
        ("1g.24gb-me", "1g.24gb-me"),
        ("1c.3g.20gb", "1c.3g.20gb"),
    ],
)
def test_is_6_every_spelling_of_a_profile_is_the_same_profile(text, name):
    assert canonical_mig_name(text) == name


@pytest.mark.parametrize("text", ["", "3g", "20gb", "0g.5gb", "3g.20gb!", "NVIDIA-A100-SXM4-40GB", "nvidia.com/gpu"])
def test_is_6_what_is_no_profile_has_no_name(text):
    assert canonical_mig_name(text) is None


def test_is_6_compute_slices_are_those_of_the_compute_instance():
    assert compute_slices("3g.20gb") == 3
    assert compute_slices("1c.3g.20gb") == 1
    assert compute_slices("") is None
