# SPDX-License-Identifier: Apache-2.0
"""A price file says what the accelerators of an endpoint cost in their machine and region."""

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.framework import ConfigurationError, Endpoint
from epp.framework.accelerators.tag import AcceleratorDeclaration
from epp.framework.files import UNCHANGED_SECONDS
from epp.framework.snapshot import ACCELERATOR
from epp.hardware.mig import UNKNOWN_SLICE
from epp.hardware.prices import PriceList, read_prices
from epp.hardware.tagger import AcceleratorTagger
from epp.runtime.followed_files import ParsedFile
from tests.support import plugins

YAML = Path("prices.yaml")
MACHINE, REGION = "node.kubernetes.io/instance-type", "topology.kubernetes.io/region"
H100 = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", MACHINE: "p5.48xlarge", REGION: "us-east-1"}
SPOT = {"karpenter.sh/capacity-type": "spot"}


def price_list(text, path=YAML):
    parsed = read_prices(text.encode(), path)
    assert parsed.problems == ()
    return PriceList(parsed.value, path.name)


@pytest.fixture
def priced(merged):
    """Tag the endpoint of pod llm/vllm-a by documents and a price file."""
    return lambda text, documents, **more: merged(documents, prices=price_list(text), **more)


def test_ome_7_price_of_a_machine_is_divided_by_its_accelerators(priced, pod, node):
    text = "prices: [{instanceType: p5.48xlarge, perHour: 98.32, region: us-east-1}]"
    tag = priced(text, [node(H100), pod({"nvidia.com/gpu": "2"})]).tag
    # 98.32 / 8 = 12.29 each
    assert tag.cost_per_hour() == pytest.approx(24.58)
    assert tag.price_source() == "prices.yaml: p5.48xlarge in us-east-1"


def test_slice_of_unknown_size_has_no_price_in_a_file(priced, pod, node):
    found = priced("prices: [{accelerator: h100, perHour: 4.25}]", [node(H100), pod({"nvidia.com/mig-3g.20gb": "1"})])
    assert found.tag.partition == UNKNOWN_SLICE  # an H100 has no such profile
    assert (found.tag.cost_per_hour(), found.tag.price_source()) == (None, "")


def test_ome_7_spot_node_has_the_spot_price_of_the_file(priced, pod, node):
    text = "prices: [{accelerator: h100, perHour: 4.25, spotPerHour: 1.90}]"
    world = [node({**H100, **SPOT}), pod({"nvidia.com/gpu": "1"})]
    tag = priced(text, world).tag
    assert (tag.cost_per_hour(), tag.cost_per_hour("never")) == (1.90, 4.25)
    assert priced(text, [node(H100), world[1]]).tag.cost_per_hour() == 4.25


def test_ome_7_each_price_is_that_of_the_most_specific_entry(priced, pod, node):
    text = """
    prices:
    - {accelerator: h100, perHour: 1, spotPerHour: 0.5}
    - {accelerator: NVIDIA-H100-80GB-HBM3, perHour: 2}
    - {accelerator: NVIDIA-H100-80GB-HBM3, perHour: 3, region: us-east-1}
    - {accelerator: NVIDIA-H100-80GB-HBM3, perHour: 4, region: eu-west-1}
    - {class: nvidia-h100-80gb, perHour: 5}
    - {instanceType: p5.48xlarge, perHour: 48}
    - {instanceType: P5.48XLARGE, perHour: 56, region: US-EAST-1}
    """
    machine, other = {**H100}, {**H100, MACHINE: "onprem-1"}

    def of(labels):
        return priced(text, [node(labels), pod({"nvidia.com/gpu": "1"})]).tag

    assert (of(machine).cost.per_hour, of(machine).cost.spot_per_hour) == (7, 0.5)
    assert of({**machine, REGION: "ap-south-1"}).cost.per_hour == 6
    assert of(other).cost.per_hour == 3
    assert of({**other, REGION: "eu-west-1"}).cost.per_hour == 4
    assert of({**other, REGION: "ap-south-1"}).cost.per_hour == 2
    assert of({"nvidia.com/gpu.product": "NVIDIA-H100-PCIe"}).cost.per_hour == 1


def test_ome_7_class_of_the_endpoint_has_its_price(priced, documents, pod, node):
    world = [*documents("ome-classes"), node(H100), pod({"nvidia.com/gpu": "1"})]
    tag = priced("prices: [{class: nvidia-h100-80gb, perHour: 3.5}]", world).tag
    assert (tag.cost.per_hour, tag.price_source()) == (3.5, "prices.yaml: AcceleratorClass nvidia-h100-80gb")


def test_ome_7_what_the_operator_declares_goes_before_the_file_and_the_file_before_all_objects(
    priced, documents, pod, node
):
    text = "prices: [{accelerator: h100, perHour: 3.5}]"
    world = [*documents("ome-classes", "kueue-and-costs"), node(H100), pod({"nvidia.com/gpu": "1"})]
    assert priced(text, world).tag.cost.per_hour == 3.5
    assert priced("prices: [{accelerator: t4, perHour: 1}]", world).tag.cost.per_hour == 4.25  # of the class
    declared = AcceleratorDeclaration(accelerator_class="nvidia-h100-80gb")
    assert priced(text, world, accelerator=declared).tag.cost.per_hour == 3.5  # not that of the class it names
    own = AcceleratorDeclaration(cost_per_hour=2.0)
    assert priced(text, world, accelerator=own).tag.cost.per_hour == 2.0


def test_ome_7_slices_pay_their_share_of_a_device_of_the_machine(priced, pod, node):
    labels = {
        "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB-MIG-3g.20gb",
        "nvidia.com/gpu.count": "16",
        "nvidia.com/mig.strategy": "single",
        MACHINE: "p4d.24xlarge",
    }
    text = "prices: [{instanceType: p4d.24xlarge, perHour: 32}]"
    tag = priced(text, [node(labels), pod({"nvidia.com/gpu": "1"})]).tag
    # 32 / 8 devices = 4, of which a slice has half of the memory
    assert (tag.cost.per_hour, tag.cost_per_hour()) == (4, 2)


def test_ome_7_devices_of_an_unknown_machine_come_from_the_entry_its_labels_or_its_resources(priced, pod, node):
    labels = {"nvidia.com/gpu.product": "Tesla-T4", MACHINE: "rented-1"}
    plain, counted = node(labels), node({**labels, "nvidia.com/gpu.count": "4"})
    full = {**plain, "status": {"allocatable": {"nvidia.com/gpu": "2", "cpu": "8"}}}
    mine = pod({"nvidia.com/gpu": "1"})

    def price(world_node, entry="{instanceType: rented-1, perHour: 8}"):
        return priced(f"prices: [{entry}]", [world_node, mine])

    assert price(counted).tag.cost.per_hour == 2
    assert price(full).tag.cost.per_hour == 4
    assert price(plain, "{instanceType: rented-1, perHour: 8, devices: 8}").tag.cost.per_hour == 1
    assert price(plain, "{instanceType: rented-1, perHour: 8, per: device}").tag.cost.per_hour == 8
    unknown = price(plain)
    assert unknown.tag.cost_per_hour() is None
    (warning,) = unknown.warnings
    assert "prices.yaml, line 1" in warning
    assert "add devices to the entry" in warning


def test_ome_7_missing_region_is_said(priced, pod, node):
    text = "prices: [{accelerator: h100, perHour: 4, region: us-west-2}]"
    merged = priced(text, [node(H100), pod({"nvidia.com/gpu": "1"})])
    assert merged.tag.cost_per_hour() is None
    (warning,) = merged.warnings
    assert warning == (
        "prices.yaml has no price for its region: line 1 is for h100 in us-west-2, and its node is in us-east-1: "
        "add an entry"
    )


def test_ome_7_a_product_that_the_catalogue_does_not_have_is_found_by_the_name_in_its_labels(priced, pod, node):
    text = "prices: [{accelerator: Acme_Abacus 9, perHour: 0.25}]"
    world = [node({"nvidia.com/gpu.product": "acme-abacus-9"}), pod({"nvidia.com/gpu": "1"})]
    assert priced(text, world).tag.cost.per_hour == 0.25
    (remark,) = price_list(text).remarks
    assert "'Acme_Abacus 9' is not a product of the catalogue" in remark


def test_ome_7_csv_has_the_same_entries():
    as_csv = """accelerator, instanceType, region, perHour, spotPerHour
# a comment
h100,,us-east-1,4.25,1.90

,p5.48xlarge,us-east-1,98.32,
"""
    as_yaml = """
prices:
- {accelerator: h100, region: us-east-1, perHour: 4.25, spotPerHour: 1.90}
- {instanceType: p5.48xlarge, region: us-east-1, perHour: "98.32"}
"""
    one, other = read_prices(as_csv.encode(), Path("p.csv")), read_prices(as_yaml.encode(), YAML)
    assert one.problems == other.problems == ()
    without_lines = [[(p.title, p.per, p.per_hour, p.spot_per_hour) for p in each.value] for each in (one, other)]
    assert without_lines[0] == without_lines[1]
    assert [price.line for price in one.value] == [3, 5]
    assert [price.line for price in other.value] == [3, 4]


@pytest.mark.parametrize(
    ("entry", "complaint"),
    [
        ("{accelerator: h100, perHour: -2}", "perHour is -2: write US dollars an hour, a number of 0 or more"),
        ("{accelerator: h100, perHour: $3}", "perHour is '$3': write US dollars an hour, a number of 0 or more"),
        ("{accelerator: h100, perHour: .nan}", "perHour is nan: write US dollars"),
        ("{accelerator: h100, perHour: true}", "perHour is True: write US dollars"),
        ("{accelerator: h100, perHour: 1e9}", "write US dollars an hour, 1,000,000 at most"),
        ("{accelerator: h100, spotPerHour: [1]}", "spotPerHour is [1]: write US dollars"),
        ("{accelerator: h100}", "there is no price: add perHour, spotPerHour or both"),
        ("{perHour: 1, region: us-east-1}", "add accelerator, class or instanceType"),
        ("{accelerator: 100, perHour: 1}", "accelerator is 100: write text"),
        ("{acelerator: h100, perHour: 1}", "'acelerator' is unknown: did you mean 'accelerator'?"),
        ("{accelerator: h100, perHour: 1, per: hour}", "per is 'hour': write device"),
        ("{accelerator: h100, perHour: 1, devices: 8}", "write per: machine, or leave it out"),
        ("{instanceType: x, perHour: 1, devices: 0}", "devices is 0: write the number of accelerators"),
        ("{instanceType: x, perHour: 1, devices: 1.5}", "devices is 1.5: write the number of accelerators"),
        ("{accelerator: L4, perHour: 0.5}", "l4 already has perHour in line 2, which applies: remove one of them"),
        ("cheap", "it is 'cheap': write an entry"),
    ],
)
def test_ome_7_an_entry_with_a_mistake_is_left_out_and_said_with_its_line(entry, complaint):
    parsed = read_prices(f"prices:\n- {{accelerator: l4, perHour: 0.7}}\n- {entry}\n".encode(), YAML)
    (problem,) = parsed.problems
    assert problem.startswith("line 3: ")
    assert complaint.lower() in problem.lower()
    assert [price.accelerator for price in parsed.value] == ["l4"]


@pytest.mark.parametrize(
    ("text", "path", "complaint"),
    [
        ("", YAML, "it is empty: write prices:"),
        ("price: []", YAML, "line 1: there is no list"),
        ("prices: {h100: 3}", YAML, "line 1: there is no list"),
        ("prices: [", YAML, "neither YAML nor JSON"),
        ("[" * 500, YAML, "nested more than"),
        ("h100,4\n", Path("p.csv"), "line 1: column 'h100' is unknown"),
        ("", Path("p.csv"), "begin with a line of column names"),
        ("accelerator,accelerator\n", Path("p.csv"), "is repeated"),
    ],
)
def test_ome_7_a_file_that_is_no_price_list_is_refused(text, path, complaint):
    with pytest.raises(ValueError, match=complaint):
        read_prices(text.encode(), path)


def test_ome_7_other_currencies_are_said():
    parsed = read_prices(b"currency: EUR\nprices: [{accelerator: t4, perHour: 1}]", YAML)
    assert parsed.problems == (
        "line 1: currency is 'EUR': convert the prices to US dollars, and write USD or leave it out",
    )


@given(st.binary(max_size=300), st.sampled_from([YAML, Path("p.csv"), Path("p.json")]))
def test_any_bytes_are_a_price_list_or_a_clear_error(content, path):
    parsed = ParsedFile((), 0)
    with suppress(ValueError):
        parsed = read_prices(content, path)
    assert all(price.title and price.line for price in parsed.value)


@pytest.fixture
def tagger(tmp_path):
    def build(text):
        (tmp_path / "prices.yaml").write_text(text)
        return plugins.built(AcceleratorTagger, {"prices": str(tmp_path / "prices.yaml")})

    return build


T4 = Endpoint("a", "10.0.0.1", 8000, labels={"nvidia.com/gpu.product": "Tesla-T4", "nvidia.com/gpu.count": "1"})


def price_by(tagger):
    return tagger.tag(T4).attributes[ACCELERATOR].cost_per_hour()


async def look_twice(built) -> None:
    """Look, and again after the time for which a file that is written in place must not change."""
    await built.check()
    built.clock.advance(UNCHANGED_SECONDS)
    await built.check()


async def test_ome_7_new_prices_take_effect_and_broken_ones_change_nothing(tagger, tmp_path):
    built, file = tagger("prices: [{accelerator: t4, perHour: 0.5}]"), tmp_path / "prices.yaml"
    assert price_by(built) == 0.5
    for broken in ("prices: [{accelerator: t4, perHour: -1}]", "prices: [", "", "\x00"):
        file.write_text(broken)
        assert await built.check()
        assert price_by(built) == 0.5
        (problem,) = built.inputs.problems
        assert problem.kept == 1
    file.unlink()
    assert await built.check()
    assert price_by(built) == 0.5
    assert "restore the file" in built.inputs.problems[0].reason
    file.write_text("prices: [{accelerator: t4, perHour: 0.4}]")
    await look_twice(built)
    assert (price_by(built), built.inputs.problems) == (0.4, ())
    assert built.inputs.rejected == {str(file): 5}


async def test_ome_7_file_comes_back_as_it_was_after_it_could_not_be_read(tagger, tmp_path):
    text = "prices: [{accelerator: t4, perHour: 0.5}]"
    built, file = tagger(text), tmp_path / "prices.yaml"
    file.unlink()
    await built.check()
    assert built.inputs.problems
    file.write_text(text)
    await built.check()
    assert built.inputs.problems == ()


async def test_ome_7_mistakes_at_the_start_leave_the_rest_in_effect_until_a_better_version(tagger, tmp_path):
    built = tagger("prices:\n- {accelerator: t4, perHour: 0.5}\n- {accelerator: l4, perHour: -1}\n")
    assert price_by(built) == 0.5
    assert "line 3: perHour is -1" in built.inputs.problems[0].reason
    (tmp_path / "prices.yaml").write_text("prices:\n- {accelerator: t4, perHour: 0.6}\n- {accelerator: l4}\n")
    await look_twice(built)
    assert price_by(built) == 0.6


def test_ome_7_missing_file_is_refused_at_the_start():
    with pytest.raises(ConfigurationError, match=r"prices: '/nowhere.yaml': cannot be read"):
        plugins.built(AcceleratorTagger, {"prices": "/nowhere.yaml"})
