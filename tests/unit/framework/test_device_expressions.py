# SPDX-License-Identifier: Apache-2.0
import pytest

from epp.framework.accelerators.device_expressions import DeviceExpression
from epp.framework.accelerators.tag import AcceleratorTag

H100 = AcceleratorTag(
    attributes={
        "device/driver": "gpu.nvidia.com",
        "gpu.nvidia.com/productName": "NVIDIA H100 80GB HBM3",
        "gpu.nvidia.com/type": "gpu",
        "gpu.nvidia.com/cudaComputeCapability": (9, 0, 0),
        "architecture": "Hopper",  # without a domain: the driver's
        "resource.kubernetes.io/pcieRoot": "pci0000:16",
        "capacity:gpu.nvidia.com/memory": 81559 * 2**20,
    }
)


def holds(source, tag=H100):
    return DeviceExpression(source, place="cel").holds(tag)


@pytest.mark.parametrize(
    "source",
    [
        'device.driver == "gpu.nvidia.com"',
        'device.driver != "gpu.amd.com" && !(device.driver == "")',
        'device.attributes["gpu.nvidia.com"].productName == "NVIDIA H100 80GB HBM3"',
        "device.attributes['gpu.nvidia.com'].type in ['gpu', 'mig']",
        'device.attributes["gpu.nvidia.com"].productName.lowerAscii().matches("^.*h100.*$")',
        'device.attributes["gpu.nvidia.com"].architecture == "Hopper"',
        'device.attributes["resource.kubernetes.io"].pcieRoot.startsWith("pci")',
        'device.attributes["gpu.nvidia.com"].cudaComputeCapability.compareTo(semver("9.0.0")) >= 0',
        'device.attributes["gpu.nvidia.com"].cudaComputeCapability.isLessThan(semver("10.0.0"))',
        'device.capacity["gpu.nvidia.com"].memory.compareTo(quantity("40Gi")) >= 0',
        'device.capacity["gpu.nvidia.com"].memory.isGreaterThan(quantity("79Gi"))',
        'device.driver == "gpu.amd.com" || device.attributes["gpu.nvidia.com"].type == "gpu"',
        'has(device.attributes["gpu.nvidia.com"].type) && !has(device.attributes["gpu.amd.com"].type)',
        '!("gpu.amd.com" in device.attributes)',
        'device.attributes["gpu.amd.com"].type == "x" || device.driver == "gpu.nvidia.com"',
    ],
)
def test_dra_3_selects_a_device(source):
    assert holds(source) is True


@pytest.mark.parametrize(
    "source",
    [
        'device.driver == "gpu.amd.com"',
        'device.capacity["gpu.nvidia.com"].memory.compareTo(quantity("80Gi")) >= 0',  # 81559 Mi are 79.6 Gi
        '"gpu.amd.com" in device.attributes && device.attributes["gpu.amd.com"].type == "x"',
    ],
)
def test_dra_3_passes_a_device_over(source):
    assert holds(source) is False


def test_dra_3_version_10_is_above_version_9():
    blackwell = AcceleratorTag(attributes={"gpu.nvidia.com/cudaComputeCapability": (10, 0)})
    expression = 'device.attributes["gpu.nvidia.com"].cudaComputeCapability.compareTo(semver("9.0.0")) > 0'
    assert holds(expression, blackwell) is True


@pytest.mark.parametrize(
    "source",
    [
        'device.attributes["gpu.nvidia.com"].brand == "Nvidia"',
        'device.capacity["gpu.amd.com"].memory.compareTo(quantity("1Gi")) > 0',
        'device.attributes["gpu.nvidia.com"].productName.compareTo(quantity("1Gi")) > 0',
    ],
)
def test_dra_3_what_a_device_does_not_say_is_not_known(source):
    assert holds(source) is None


@pytest.mark.parametrize(
    ("source", "position"),
    [
        ('device.driver ==\n  && "x"', "line 2, column 3"),
        ('device.vendor == "nvidia"', "line 1, column 7"),
        ("[1, 2].all(x, x > 0)", "line 1, column 12"),
        ('device.driver + "x" == "y"', "line 1, column 15"),
        ("1 + 1 == 2", "line 1, column 3"),
        ('true &&\n device.capacity["d"].memory.compareTo(quantity("40Gx")) > 0', "line 2, column 40"),
        ('device.attributes["d"].v.compareTo(semver("9.x")) > 0', "line 1, column 36"),
    ],
)
def test_dra_3_an_unsupported_expression_is_refused_with_its_position(source, position):
    with pytest.raises(ValueError, match=f"filter.cel: unsupported expression at {position}: "):
        DeviceExpression(source, place="filter.cel")


def test_dra_3_an_expression_that_is_no_condition_is_refused():
    with pytest.raises(ValueError, match="cel returns STRING; it must return true or false"):
        DeviceExpression("device.driver", place="cel")


def test_dra_3_expressions_have_a_greatest_length_and_a_greatest_number_of_parts():
    with pytest.raises(ValueError, match="has 4097 characters; the maximum is 4096"):
        DeviceExpression('"' + "x" * 4095 + '"', place="cel")
    with pytest.raises(ValueError, match="has 599 names, values and operators; the maximum is 512"):
        DeviceExpression("||".join(["true"] * 300), place="cel")  # 300 values, 299 operators


def test_dra_3_deep_nesting_is_refused_not_survived_by_luck():
    with pytest.raises(ValueError, match="recursion limit"):
        DeviceExpression("(" * 200 + "true" + ")" * 200, place="cel")
