# SPDX-License-Identifier: Apache-2.0
"""A GPU catalogue file adds products, and prices known ones."""

import msgspec
import pytest
import yaml

from epp.framework import ConfigurationError, Endpoint
from epp.framework.accelerators.tag import Sharing
from epp.framework.snapshot import ACCELERATOR
from epp.hardware.tables import GpuCatalogueEntry, with_gpu_catalogue
from epp.hardware.tagger import AcceleratorTagger
from tests.support import plugins
from tests.support.config_files import replace
from tests.support.kube.manifests import manifest

T4 = {"model": "T4", "fullModelName": "Tesla T4", "vendor": "NVIDIA", "costPerHour": 0.53, "fp16TFlops": 65}


def read_gpu_catalogue(entries):
    return with_gpu_catalogue(msgspec.convert(entries, tuple[GpuCatalogueEntry, ...]))


def found(catalogue, text):
    product = catalogue.find(text)
    assert product is not None
    return product


def test_tf_18_a_catalogue_file_gives_known_products_their_price():
    product = found(read_gpu_catalogue([T4]), "NVIDIA-Tesla-T4")
    assert (product.fp16, product.per_hour) == (65, 0.53)
    assert product.facts().per_hour == 0.53
    assert product.bandwidth_gbps == 320


def test_tf_18_a_name_that_leaves_the_size_open_prices_every_size():
    a100 = {"model": "A100_SXM", "vendor": "NVIDIA", "costPerHour": "1.89", "fp16TFlops": "312"}
    catalogue = read_gpu_catalogue([a100])
    prices = {name: found(catalogue, name).per_hour for name in ("a100-sxm-40gb", "a100-sxm-80gb", "a100-pcie-80gb")}
    assert prices == {"a100-sxm-40gb": 1.89, "a100-sxm-80gb": 1.89, "a100-pcie-80gb": None}


def test_tf_18_the_entry_that_names_fewer_products_knows_them_better():
    precise = {"model": "H100_NVL", "costPerHour": 3, "fp16TFlops": 800}
    general = {"model": "H100", "fullModelName": "NVIDIA H100", "costPerHour": 2.5, "fp16TFlops": 989}
    for entries in ([precise, general], [general, precise]):
        catalogue = read_gpu_catalogue(entries)
        nvl, pcie = found(catalogue, "NVIDIA-H100-NVL"), found(catalogue, "NVIDIA-H100-PCIe")
        assert (nvl.per_hour, nvl.fp16) == (3, 800)
        # the general figure is that of another variant
        assert (pcie.per_hour, pcie.fp16) == (2.5, 756)


def test_tf_18_an_unknown_product_is_found_by_both_of_its_names():
    entry = {"model": "RTX9090", "fullModelName": "NVIDIA GeForce RTX 9090", "vendor": "NVIDIA", "fp16TFlops": 419}
    catalogue = read_gpu_catalogue([entry])
    assert found(catalogue, "NVIDIA-GeForce-RTX-9090") is found(catalogue, "RTX9090")
    product = found(catalogue, "rtx9090")
    assert (product.vendor, product.fp16, product.memory_bytes) == ("nvidia", 419, None)


def test_tf_18_a_product_of_another_vendor_is_not_taken_for_a_known_one():
    catalogue = read_gpu_catalogue([{"model": "T4", "fullModelName": "Acme T4", "vendor": "Acme", "fp16TFlops": 1}])
    assert (found(catalogue, "nvidia-tesla-t4").vendor, found(catalogue, "t4").fp16) == ("nvidia", 65)
    assert (found(catalogue, "Acme T4").vendor, found(catalogue, "Acme T4").fp16) == ("acme", 1)


def test_tf_18_partition_templates_are_shares_of_the_product():
    shares = {"memoryGigabytes": 10, "computePercent": 14.28, "maxPartition": 7}
    template = {"templateId": "19", "name": "1g.10gb", **shares}
    entry = {"model": "A100_SXM_80G", "fullModelName": "NVIDIA A100-SXM4-80GB", "partitionTemplates": [template]}
    partition = found(read_gpu_catalogue([entry]), "a100-sxm-80gb").partitions["19"]
    assert (partition.kind, partition.profile) == (Sharing.MIG, "1g.10gb")
    assert partition.compute_fraction == pytest.approx(0.1428)
    # 10 of 80
    assert partition.memory_fraction == pytest.approx(0.125)


def with_gpu(product):
    labels = {"nvidia.com/gpu.product": product, "nvidia.com/gpu.count": "1"}
    return Endpoint("a", "10.0.0.1", 8000, labels=labels)


@pytest.fixture
def tagger(tmp_path):
    """Build the tagger with a catalogue file, and maybe with objects."""

    def build(entries, *objects):
        catalogue, cluster = tmp_path / "gpus.yaml", tmp_path / "cluster.yaml"
        replace(catalogue, yaml.safe_dump(entries))
        replace(cluster, yaml.safe_dump_all(objects))
        parameters = {"gpuCatalogue": str(catalogue), "paths": [str(cluster)]}
        return plugins.built(AcceleratorTagger, parameters)

    return build


def test_tf_18_endpoints_get_the_figures_of_the_file(tagger):
    built = tagger([{**T4, "costPerHour": 0.35, "fp16TFlops": 64}, {"model": "Abacus", "costPerHour": 0.01}])
    tag = built.tag(with_gpu("Tesla-T4")).attributes[ACCELERATOR]
    assert (tag.cost_per_hour(), tag.tflops()) == (0.35, 64)
    assert (tag.provenance["per_hour"], tag.provenance["fp16"]) == ("gpus.yaml: T4", "gpus.yaml: T4")
    assert tag.provenance["bandwidth_gbps"] == "catalogue/t4"
    assert built.knows("abacus")


def test_tf_18_partition_of_the_file_is_the_share_of_its_endpoint(tagger):
    template = {"templateId": "half", "name": "half", "memoryGigabytes": 4, "computePercent": 50}
    allocated = {"uid": {"templateId": "half", "namespace": "default", "podName": "a"}}
    status = {"phase": "Running", "gpuModel": "T4", "capacity": {"tflops": "65", "vram": "16Gi"}}
    gpu = manifest("tensor-fusion.ai/v1", "GPU", "gpu-0", status=status | {"allocatedPartitions": allocated})
    tag = tagger([{**T4, "partitionTemplates": [template]}], gpu).tag(Endpoint("a", "10.0.0.1", 8000))
    partition = tag.attributes[ACCELERATOR].partition
    # 4 of 16 GiB
    assert (partition.profile, partition.compute_fraction, partition.memory_fraction) == ("half", 0.5, 0.25)


def of_half(**figures):
    return {"partitionTemplates": [{"name": "half", **figures}]}


@pytest.mark.parametrize(
    ("entry", "complaint"),
    [
        ({"model": ""}, "the entry has no name: add model or fullModelName"),
        ({"costPerHour": "cheap"}, "costPerHour is 'cheap': write a number from 0 to 10,000"),
        ({"costPerHour": 10**12}, "costPerHour is 1000000000000: write a number from 0 to 10,000"),
        ({"fp16TFlops": -1}, "fp16TFlops is -1: write a number from 0 to 1,000,000"),
        (of_half(computePercent=101), "partitionTemplates[0].computePercent is 101: it must be between 0 and 100"),
        (of_half(memoryGigabytes=-8), "partitionTemplates[0].memoryGigabytes is -8: it must be between 0 and 65536"),
        ({"model": 4}, "model is 4: write it in quotes"),
    ],
)
def test_tf_18_an_impossible_figure_is_said_and_the_rest_is_used(tagger, entry, complaint):
    built = tagger([{"model": "T4", **entry}, {"model": "L4", "costPerHour": 0.7}])
    (problem,) = built.inputs.problems
    assert problem.reason == f"line 1: {complaint}"
    assert "gpus.yaml" in problem.file
    assert built.tag(with_gpu("NVIDIA-L4")).attributes[ACCELERATOR].cost_per_hour() == 0.7


@pytest.mark.parametrize("text", ["", "{", "model: T4", "- [" * 100])
def test_tf_18_a_file_without_a_list_is_refused(tmp_path, text):
    file = tmp_path / "gpus.yaml"
    replace(file, text)
    with pytest.raises(ConfigurationError, match=r"gpuCatalogue: '.*gpus.yaml'"):
        plugins.built(AcceleratorTagger, {"gpuCatalogue": str(file)})


async def test_tf_18_a_new_version_of_the_file_takes_effect_and_a_broken_one_changes_nothing(tagger, tmp_path):
    built, file = tagger([T4]), tmp_path / "gpus.yaml"

    def price():
        return built.tag(with_gpu("Tesla-T4")).attributes[ACCELERATOR].cost.per_hour

    assert price() == 0.53
    replace(file, yaml.safe_dump([{**T4, "costPerHour": 0.41}]))
    assert await built.check()
    assert price() == 0.41
    replace(file, "- {model: T4, costPerHour: 0.3}\n- {model: L4, costPerHour: -1}\n")
    assert await built.check()
    assert price() == 0.41
    (problem,) = built.inputs.problems
    assert "line 2: costPerHour is -1" in problem.reason
    assert not await built.check()  # the same as before
