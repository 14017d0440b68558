# SPDX-License-Identifier: Apache-2.0
from typing import Any

import pytest

from epp.hardware.catalogue import CATALOGUE, INSTANCE_TYPES, InstanceType, find_instance_type, read_table

MACHINES = {
    "p5.48xlarge": ("h100", 8), "p4d.24xlarge": ("a100", 8), "p5en.48xlarge": ("h200", 8), "p3.2xlarge": ("v100", 1),
    "g4dn.12xlarge": ("t4", 4), "g5.48xlarge": ("a10g", 8), "g6.xlarge": ("l4", 1), "g6e.12xlarge": ("l40s", 4),
    "g7.12xlarge": ("rtx-pro-4500", 2), "p6e-gb300.36xlarge": ("gb300", 4), "ml.g5.xlarge": ("a10g", 1),
    "Standard_NV24ads_V710_v5": ("radeon-pro-v710", 1), "Standard_ND96isr_H100_v5": ("h100", 8),
    "standard_nc24ads_a100_v4": ("a100", 1), "Standard_NC4as_T4_v3": ("t4", 1),
    "a2-ultragpu-4g": ("a100", 4), "a3-highgpu-8g": ("h100", 8), "g2-standard-24": ("l4", 2),
    "ct5lp-hightpu-8t": ("v5e", 8), "BM.GPU.H100.8": ("h100", 8), "BM.GPU.MI300X.8": ("mi300x", 8),
}  # fmt: skip


@pytest.mark.parametrize(("name", "model", "count"), [(name, *found) for name, found in MACHINES.items()])
def test_ome_14_machine_types_tell_the_accelerators(name, model, count):
    machine = find_instance_type(name)
    product = CATALOGUE.find(machine.product)
    assert (product.model, machine.count) == (model, count)


@pytest.mark.parametrize("name", sorted({machine.product for machine in INSTANCE_TYPES.values()}))
def test_every_product_of_the_table_is_in_the_catalogue(name):
    product = CATALOGUE.find(name)
    assert product.name == name


def test_sizes_of_a_model_are_told_apart():
    assert find_instance_type("p4d.24xlarge") == InstanceType("a100-sxm-40gb", 8, network=400)
    assert find_instance_type("p4de.24xlarge") == InstanceType("a100-sxm-80gb", 8, network=400)


@pytest.mark.parametrize(
    ("name", "product", "share"),
    [
        ("g4-standard-6", "rtx-pro-6000-server", 1 / 8),
        ("g4-standard-24", "rtx-pro-6000-server", 1 / 2),
        ("Standard_NV4ads_V710_v5", "radeon-pro-v710", 1 / 6),
        ("g6f.xlarge", "l4", 1 / 8),
    ],
)
def test_machine_with_a_part_of_a_gpu_has_its_share(name, product, share):
    machine = find_instance_type(name)
    assert machine == InstanceType(product, 1, share)
    assert machine.partition is not None
    assert machine.partition.compute_fraction == machine.partition.memory_fraction == share


def test_ome_14_overrides_go_first_and_add_types():
    overrides = {"P5.48xlarge": InstanceType("h200", 8), "our-box": InstanceType("l4", 2)}
    assert find_instance_type("p5.48xlarge", overrides) == InstanceType("h200", 8)
    assert find_instance_type("our-box", overrides) == InstanceType("l4", 2)
    assert find_instance_type("m7i.4xlarge", overrides) is None


def test_every_machine_type_with_a_network_has_accelerators():
    table = read_table("instance_types.yaml", dict[str, dict[str | int, Any]])
    assert {name.lower() for names in table["network"].values() for name in names} <= INSTANCE_TYPES.keys()
