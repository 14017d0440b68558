# SPDX-License-Identifier: Apache-2.0
from hypothesis import given
from hypothesis import strategies as st

from epp.framework.accelerators.fit import rejection
from epp.framework.accelerators.selection import ANY, Refusal, Selection, combined, tightened
from epp.framework.accelerators.tag import AcceleratorKind, AcceleratorTag, Cost

NAMES = st.sampled_from(["a100", "h100", "t4", "l4"])
LISTS = st.lists(NAMES, unique=True, max_size=3).map(tuple)
CAPS = st.none() | st.sampled_from([1.0, 4.0, 8.0])
SELECTIONS = st.builds(
    Selection,
    policy=st.sampled_from(["", "cheapest", "best-fit"]),
    classes=LISTS,
    excluded_classes=st.frozensets(NAMES, max_size=2),
    families=LISTS,
    vendors=st.lists(st.sampled_from(["nvidia", "amd"]), unique=True).map(tuple),
    required_features=st.frozensets(st.sampled_from(["fp8", "nvlink", "bf16"])),
    min_memory_bytes=st.sampled_from([0, 16, 40, 80]),
    max_memory_bytes=st.none() | st.sampled_from([40, 80]),
    min_total_memory_bytes=st.sampled_from([0, 80, 320]),
    min_compute_capability=st.sampled_from([(), (8, 0), (9, 0), (10, 0)]),
    max_endpoint_cost_per_hour=CAPS,
    max_device_cost_per_hour=CAPS,
    max_cost_per_million_tokens=CAPS,
    min_compute_slices=st.integers(0, 7),
    whole_device_only=st.booleans(),
)
TAGS = st.builds(
    AcceleratorTag,
    kind=st.sampled_from([AcceleratorKind.GPU, AcceleratorKind.CPU, AcceleratorKind.UNKNOWN]),
    vendor=st.sampled_from(["nvidia", "amd", ""]),
    family=st.sampled_from(["a100", "h100", ""]),
    classes=LISTS,
    features=st.frozensets(st.sampled_from(["fp8", "nvlink", "bf16"])),
    count=st.integers(0, 4),
    memory_bytes=st.none() | st.sampled_from([16, 40, 80]),
    compute_capability=st.sampled_from([(), (8, 0), (9, 0), (10, 0)]),
    cost=st.builds(Cost, per_hour=st.none() | st.sampled_from([1.0, 2.0, 4.0])),
)


MINIMUMS = (
    *("min_memory_bytes", "min_total_memory_bytes", "min_compute_capability", "min_compute_slices"),
    *("whole_device_only", "excluded_classes"),
)
CAPPED = (
    *("max_memory_bytes", "max_endpoint_cost_per_hour", "max_device_cost_per_hour"),
    "max_cost_per_million_tokens",
)


@given(SELECTIONS, SELECTIONS)
def test_ome_5_combined_layers_never_loosen_a_minimum_a_cap_or_an_exclusion(lower, higher):
    both = combined(lower, higher)
    for layer in (lower, higher):
        for bound in MINIMUMS:
            assert getattr(both, bound) >= getattr(layer, bound)
        for cap in CAPPED:
            assert getattr(layer, cap) is None or getattr(both, cap) <= getattr(layer, cap)


@given(SELECTIONS, SELECTIONS, TAGS)
def test_ome_5_a_wish_never_lets_an_accelerator_in_that_the_bounds_keep_out(bounds, wish, tag):
    if rejection(tag, bounds) is not None:
        assert rejection(tag, tightened(bounds, wish).selection) is not None


@given(SELECTIONS, SELECTIONS, TAGS)
def test_ome_5_a_wish_without_refusals_is_kept_in_full(bounds, wish, tag):
    found = tightened(bounds, wish)
    if not found.refused and rejection(tag, wish) is not None:
        assert rejection(tag, found.selection) is not None


@given(SELECTIONS)
def test_ome_5_an_empty_layer_changes_nothing(layer):
    assert combined(layer, ANY) == layer == combined(ANY, layer)
    assert tightened(layer, ANY).selection == layer


def test_ome_5_lists_and_names_of_the_higher_layer_replace():
    lower = Selection(policy="cheapest", classes=("t4",), required_features=frozenset({"fp8"}))
    higher = Selection(policy="best-fit", classes=("h100", "a100"))
    both = combined(lower, higher)
    assert both.policy == "best-fit"
    assert both.classes == ("h100", "a100")
    assert both.required_features == {"fp8"}


def test_ome_5_a_wish_outside_the_allow_list_is_refused_and_the_rest_of_it_kept():
    found = tightened(Selection(classes=("h100", "a100")), Selection(classes=("a100", "t4")))
    assert found.selection.classes == ("a100",)
    assert found.refused == (Refusal("classes", ("t4",), ("h100", "a100")),)


def test_ome_5_a_wish_all_of_which_is_refused_leaves_the_bounds_as_they_were():
    found = tightened(Selection(classes=("h100",)), Selection(classes=("t4",)))
    assert found.selection.classes == ("h100",)


def test_ome_5_families_with_and_without_vendor_go_together():
    assert tightened(Selection(families=("hopper",)), Selection(families=("nvidia-hopper",))) == tightened(
        Selection(families=("nvidia-hopper",)), Selection(families=("hopper",))
    )


def test_ome_5_which_prices_count_is_not_for_the_client_to_say():
    found = tightened(Selection(max_endpoint_cost_per_hour=3.0), Selection(spot_preference="always"))
    assert found.selection.spot_preference is None
    assert found.refused == (Refusal("spot_preference", ("always",), ("auto",)),)


def test_defect_2_no_bounds_at_all_are_valid_input():
    assert not ANY.has_bounds
    assert rejection(AcceleratorTag(), ANY) is None
