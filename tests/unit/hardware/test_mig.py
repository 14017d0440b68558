# SPDX-License-Identifier: Apache-2.0
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.framework.accelerators.tag import Sharing
from epp.hardware.mig import MIG_GPUS, Placed, mig_gpu, more_that_fit, parse_mig_profile, partition_of

GIB = 2**30


@pytest.mark.parametrize(
    ("name", "parts", "spellings"),
    [
        ("3g.20gb", (3, 20, False), "3g.20gb mig-3g.20gb nvidia.com/mig-3g.20gb nvidia.com/mig-3g.20gb.shared"),
        ("3g.20gb", (3, 20, False), "instaslice.redhat.com/mig-3g.20gb NVIDIA-A100-SXM4-40GB-MIG-3g.20gb-SHARED"),
        ("3g.40gb", (3, 40, False), "mig.das.com/3g.40gb"),
        ("1g.5gb", (1, 5, False), "nvidia.com/mig-1g.5gb.shared NVIDIA-A100-SXM4-40GB-MIG-1g.5gb-SHARED"),
        ("1g.5gb+me", (1, 5, True), "1g.5gb+me 1g.5gb.me nvidia.com/mig-1g.5gb.me mig.das.com/1g.5gb-plus-me"),
        ("1g.5gb+me", (1, 5, True), "mig.das.com/mig-1g.5gb.me NVIDIA-A100-SXM4-40GB-MIG-1g.5gb.me"),
        ("1g.24gb+me.all", (1, 24, True), "1g.24gb+me.all nvidia.com/mig-1g.24gb-plus-me-plus-all"),
        ("1g.24gb+gfx", (1, 24, False), "1g.24gb+gfx"),
        ("1g.24gb-me", (1, 24, False), "1g.24gb-me"),
        ("1c.3g.20gb", (3, 20, False), "1c.3g.20gb"),
        ("7g.141gb", (7, 141, False), "7G.141GB"),
    ],
)
def test_is_2_is_6_profiles_are_read_in_every_spelling(name, parts, spellings):
    for profile in map(parse_mig_profile, spellings.split()):
        assert profile.name == name
        assert (profile.compute_slices, profile.memory_gb, profile.media_extensions) == parts


NO_PROFILES = ("nvidia.com/gpu", "NVIDIA-A100-SXM4-40GB", "3g", "20gb", "0g.5gb", "33g.20gbx", "3g.20gb!")


@pytest.mark.parametrize("text", ["", *NO_PROFILES])
def test_is_2_is_6_what_is_no_profile_is_none(text):
    assert parse_mig_profile(text) is None


def test_defect_12_the_media_extension_of_a_profile_is_not_dropped():
    assert parse_mig_profile("1g.5gb+me") != parse_mig_profile("1g.5gb")


@given(
    st.integers(1, 7),
    st.integers(1, 200),
    st.none() | st.integers(1, 7),
    st.sampled_from([(), ("me",), ("gfx",), ("me", "all"), ("-me",)]),
)
def test_is_2_a_canonical_name_reads_back_as_the_same_profile(compute, gigabytes, instance, attributes):
    profile = parse_mig_profile(f"{compute}g.{gigabytes}gb")
    added = ".".join(one for one in attributes if one != "-me")
    name = f"{instance}c." if instance else ""
    name += f"{profile.name}{'+' + added if added else ''}{'-me' if '-me' in attributes else ''}"
    again = parse_mig_profile(name)
    assert (again.name, again.media_extensions, again.compute_instance_slices) == (name, "me" in attributes, instance)
    assert again.instance_name == name.removeprefix(f"{instance}c.")


@pytest.mark.parametrize(
    ("profile", "product", "compute", "memory"),
    [
        ("3g.20gb", "NVIDIA-A100-SXM4-40GB", 3 / 7, 4 / 8),
        ("1g.10gb", "NVIDIA-A100-SXM4-40GB", 1 / 7, 2 / 8),
        ("1g.10gb", "NVIDIA-A100-SXM4-80GB", 1 / 7, 1 / 8),
        ("2g.20gb", "NVIDIA H100-SXM5-80GB", 2 / 7, 2 / 8),
        ("4g.71gb", "NVIDIA-H200", 4 / 7, 4 / 8),
        ("7g.80gb", "NVIDIA-H100-80GB-HBM3", 1.0, 1.0),
        ("1g.6gb", "NVIDIA-A30", 1 / 4, 1 / 4),
        ("2g.12gb+me", "NVIDIA-A30", 2 / 4, 2 / 4),
        ("4g.24gb", "NVIDIA A30-24GB", 1.0, 1.0),
        # of a compute instance the compute is its own, the memory that of its GPU instance
        ("1c.3g.20gb", "NVIDIA-A100-SXM4-40GB", 1 / 7, 4 / 8),
    ],
)
def test_is_3_a_slice_has_its_share_of_compute_and_of_memory(profile, product, compute, memory):
    found = partition_of(parse_mig_profile(profile), mig_gpu(product), start=4, parent_id="GPU-a")
    assert (found.kind, found.profile, found.start, found.parent_id) == (Sharing.MIG, profile, 4, "GPU-a")
    assert (found.compute_fraction, found.memory_fraction) == pytest.approx((compute, memory))


def test_is_3_a_3g_20gb_slice_of_an_a100_40gb_has_20_gib_three_sevenths_and_a_half():
    profile = parse_mig_profile("3g.20gb")
    partition = partition_of(profile, mig_gpu("a100", 40 * GIB))
    assert profile.memory_bytes == 20 * GIB
    assert (partition.compute_slices, partition.memory_slots) == (3, 4)


@pytest.mark.parametrize(
    ("profile", "compute", "slots"),
    [
        ("3g.20gb", 3 / 7, 4),
        ("1g.6gb", 1 / 4, 1),  # only an A30 has it
        ("1g.10gb", 1 / 7, 1),  # an A100-80 or H100 rather than an A100-40
        ("2g.999gb", 2 / 7, 2),  # nobody has it: the usual division
    ],
)
def test_is_3_where_the_gpu_is_not_known_the_profile_tells(profile, compute, slots):
    partition = partition_of(parse_mig_profile(profile))
    assert partition.compute_fraction == pytest.approx(compute)
    assert partition.memory_slots == slots


def test_is_3_a_profile_missing_from_the_table_has_the_slots_its_memory_needs():
    profile = parse_mig_profile("2g.30gb")
    # 30 of 80 GB are 3 of 8 slots
    assert partition_of(profile, MIG_GPUS["h100-80gb"]).memory_fraction == pytest.approx(3 / 8)


def test_a_shared_slice_is_divided_once_more():
    partition = partition_of(parse_mig_profile("3g.20gb"), MIG_GPUS["a100-40gb"], sharers=2)
    # 3/7 / 2 and 4/8 / 2
    assert partition.compute_fraction == pytest.approx(3 / 14)
    assert partition.memory_fraction == pytest.approx(1 / 4)
    assert partition.sharers == 2


@pytest.mark.parametrize(
    ("gpu", "profiles"),
    [
        ("a100-40gb", "1g.5gb 1g.5gb+me 1g.10gb 2g.10gb 3g.20gb 4g.20gb 7g.40gb"),
        ("a100-80gb", "1g.10gb 1g.10gb+me 1g.20gb 2g.20gb 3g.40gb 4g.40gb 7g.80gb"),
        ("h100-80gb", "1g.10gb 1g.10gb+me 1g.20gb 2g.20gb 3g.40gb 4g.40gb 7g.80gb"),
        ("h100-94gb", "1g.12gb 1g.12gb+me 1g.24gb 2g.24gb 3g.47gb 4g.47gb 7g.94gb"),
        ("h100-96gb", "1g.12gb 1g.12gb+me 1g.24gb 2g.24gb 3g.48gb 4g.48gb 7g.96gb"),
        ("h200-141gb", "1g.18gb 1g.18gb+me 1g.35gb 2g.35gb 3g.71gb 4g.71gb 7g.141gb"),
        ("b200-180gb", "1g.23gb 1g.23gb+me 1g.45gb 2g.45gb 3g.90gb 4g.90gb 7g.180gb"),
        ("gb200-186gb", "1g.23gb 1g.23gb+me 1g.47gb 2g.47gb 3g.93gb 4g.93gb 7g.186gb"),
        ("a30-24gb", "1g.6gb 1g.6gb+me 2g.12gb 2g.12gb+me 4g.24gb"),
    ],
)
def test_is_14_each_gpu_has_the_profiles_its_maker_lists(gpu, profiles):
    assert list(MIG_GPUS[gpu].layouts) == profiles.split()


@pytest.mark.parametrize(
    ("gpu", "placed", "counts"),
    [
        ("a100-40gb", [Placed("3g.20gb", 0)], "3 1 2 1 1 0 0"),
        ("h100-80gb", [], "7 1 4 3 2 1 1"),  # as many as its maker says
    ],
)
def test_is_13_what_fits_beside_the_slices_that_are_there(gpu, placed, counts):
    found = more_that_fit(MIG_GPUS[gpu], placed)
    assert list(found) == list(MIG_GPUS[gpu].layouts)  # from 1g.5gb, 1g.5gb+me and 1g.10gb to 4g.20gb and 7g.40gb
    assert list(found.values()) == [int(count) for count in counts.split()]


def test_is_13_a_gpu_has_one_slice_with_media_extensions():
    gpu = MIG_GPUS["a30-24gb"]
    fits = more_that_fit(gpu, [Placed("1g.6gb+me", 3)])
    assert (fits["1g.6gb"], fits["1g.6gb+me"], fits["2g.12gb"], fits["2g.12gb+me"]) == (3, 0, 1, 0)


@pytest.mark.parametrize("profile", ["1g.5gb+me", "1g.5gb.me", "mig.das.com/1g.5gb-plus-me"])
def test_is_13_placements_may_be_spelled_in_any_way(profile):
    fits = more_that_fit(MIG_GPUS["a100-40gb"], [Placed(profile, 6)])
    assert (fits["1g.5gb"], fits["1g.5gb+me"], fits["3g.20gb"]) == (6, 0, 1)


def test_is_13_a_placement_counts_by_its_own_size_if_the_profile_is_not_known():
    # slots 4-7 are taken
    assert more_that_fit(MIG_GPUS["a100-40gb"], [Placed("3g.99gb", 4, size=4)])["4g.20gb"] == 1


@given(st.sampled_from(sorted(MIG_GPUS)), st.data())
def test_is_13_the_report_is_the_best_of_all_placements(name, data):
    gpu = MIG_GPUS[name]
    placed: list[Placed] = []
    taken: set[int] = set()
    for profile in data.draw(st.lists(st.sampled_from(sorted(gpu.layouts)), max_size=4)):
        layout = gpu.layouts[profile]
        start = data.draw(st.sampled_from(layout.starts))
        slots = set(range(start, start + layout.size))
        if taken.isdisjoint(slots):
            taken |= slots
            placed.append(Placed(profile, start))
    has_media = any(gpu.layouts[one.profile].media_extensions for one in placed)
    for profile, layout in gpu.layouts.items():
        free = [set(range(start, start + layout.size)) for start in layout.starts]
        free = [slots for slots in free if taken.isdisjoint(slots)]
        best = max(
            len(chosen)
            for count in range(len(free) + 1)
            for chosen in itertools.combinations(free, count)
            if sum(map(len, chosen)) == len(set().union(*chosen))
        )
        limit = (0 if has_media else 1) if layout.media_extensions else best
        assert more_that_fit(gpu, placed)[profile] == min(best, limit)


@pytest.mark.parametrize("product", ["Tesla-T4", "NVIDIA-L40S", "Instinct_MI300X", "unheard-of"])
def test_what_cannot_be_divided_has_no_layout(product):
    assert mig_gpu(product) is None


@pytest.mark.parametrize(
    ("product", "memory_bytes", "name"),
    [
        ("NVIDIA A100-PCIE-40GB", None, "a100-40gb"),
        ("NVIDIA-A100-SXM4-80GB-MIG-1g.10gb", None, "a100-80gb"),
        ("a100", 81251 * 2**20, "a100-80gb"),
        ("NVIDIA H100-SXM5-80GB", None, "h100-80gb"),
        ("NVIDIA-H100-NVL", None, "h100-94gb"),
        ("NVIDIA H100-GH200-96GB", None, "gh200-96gb"),
        ("NVIDIA H200-SXM5-141GB", None, "h200-141gb"),
        ("NVIDIA A30-24GB", None, "a30-24gb"),
    ],
)
def test_is_14_names_of_gpus_lead_to_their_layout(product, memory_bytes, name):
    gpu = mig_gpu(product, memory_bytes)
    assert gpu.name == name
