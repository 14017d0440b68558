# SPDX-License-Identifier: Apache-2.0
"""Names of extended resources: those of accelerators with their vendors, and those of other devices."""

import re
from collections.abc import Mapping
from typing import NamedTuple

from epp.framework.accelerators.tag import AcceleratorKind


class Maker(NamedTuple):
    """Vendor of the devices of a resource, and their kind."""

    vendor: str
    kind: AcceleratorKind


_GPU, _XPU, _NPU = AcceleratorKind.GPU, AcceleratorKind.XPU, AcceleratorKind.NPU
_BY_DOMAIN: Mapping[str, Maker] = {
    "nvidia.com": Maker("nvidia", _GPU),
    "amd.com": Maker("amd", _GPU),
    "gpu.intel.com": Maker("intel", _XPU),
    "google.com": Maker("google", AcceleratorKind.TPU),
    "cloud-tpus.google.com": Maker("google", AcceleratorKind.TPU),
    "habana.ai": Maker("intel", _NPU),
    "aws.amazon.com": Maker("aws", _NPU),
    "qualcomm.com": Maker("qualcomm", _NPU),
    "huawei.com": Maker("huawei", _NPU),
    "cambricon.com": Maker("cambricon", _NPU),
    "furiosa.ai": Maker("furiosa", _NPU),
    "rebellions.ai": Maker("rebellions", _NPU),
    "tenstorrent.com": Maker("tenstorrent", _NPU),
    "hygon.com": Maker("hygon", _GPU),
    "iluvatar.ai": Maker("iluvatar", _GPU),
    "metax-tech.com": Maker("metax", _GPU),
    "mthreads.com": Maker("mthreads", _GPU),
    "enflame.com": Maker("enflame", _NPU),
    "kunlunxin.com": Maker("kunlunxin", _NPU),
}
"""Domains in which all resources are those of accelerators, but for those below."""
_ACCELERATORS_OF: Mapping[str, re.Pattern[str]] = {
    "google.com": re.compile("tpu.*"),
    "cloud-tpus.google.com": re.compile("v[0-9].*"),
    "aws.amazon.com": re.compile("neuron.*"),
    "huawei.com": re.compile("ascend.*|npu.*", re.IGNORECASE),
    "gpu.intel.com": re.compile("i915|xe|xpu"),
}
"""Names of accelerators in domains that have other resources as well."""
_AMOUNTS = re.compile(
    ".*(gpu-?mem|gpu-?memory|gpu-?cores?|gpu-core|vcuda-(core|memory)|dcu-?(mem|cores)|mem-?percentage|-memory|monitoring)"
    "|.*cores?-percentage|millicores|tiles|priority|memory.max",
    re.IGNORECASE,
)
"""Names of amounts, which say how much of a device a pod gets: another resource counts the devices."""
_NO_ACCELERATORS = re.compile(
    r"(.*\.)?(kubernetes\.io|k8s\.io|vpc\.amazonaws\.com|kubevirt\.io|cncf\.io|networking\.gke\.io\.networks"
    r"|mellanox\.com|tensor-fusion\.ai|openshift\.io|instaslice\.redhat\.com)"
    r"|rdma|smarter-devices|squat\.ai|(qat|dsa|iaa|dlb|sgx)\.intel\.com"
)
"""Domains of network cards, device files, addresses and quotas."""
_NO_ACCELERATOR_WORDS = frozenset(
    {
        "rdma",
        "roce",
        "infiniband",
        "ib",
        "hca",
        "sriov",
        "mlnx",
        "mlxnics",
        "mellanox",
        "netdevice",
        "nic",
        "nics",
        "vnic",
    }
    | {
        "eni",
        "erdma",
        "efa",
        "hostdev",
        "dpdk",
        "vhost",
        "macvlan",
        "ipvlan",
        "vlan",
        "kvm",
        "tun",
        "fuse",
        "epc",
        "qat",
    }
)
"""Words in the names of other devices, in any domain."""
_WORD = re.compile("[a-z0-9]+")


def maker_of(name: str) -> Maker | None:
    """Return vendor and kind of the accelerators that a resource counts; None for another resource."""
    domain, _, rest = name.partition("/")
    maker = _BY_DOMAIN.get(domain.lower())
    if maker is None or is_no_accelerator(name) or _AMOUNTS.fullmatch(rest):
        return None
    pattern = _ACCELERATORS_OF.get(domain.lower())
    return maker if pattern is None or pattern.fullmatch(rest) else None


def is_no_accelerator(name: str) -> bool:
    """Return whether a resource counts other things: CPUs, memory, network cards, addresses, device files."""
    domain, slash, rest = name.partition("/")
    if not slash or _NO_ACCELERATORS.fullmatch(domain.lower()):
        return True
    return not _NO_ACCELERATOR_WORDS.isdisjoint(_WORD.findall(rest.lower()))
