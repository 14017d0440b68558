# SPDX-License-Identifier: Apache-2.0
"""Extended resources of accelerators: their names, and the number that a pod requests."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from math import ceil

import msgspec

from epp.framework.accelerators.tag import AcceleratorKind
from epp.framework.quantities import canonical_mig_name
from epp.hardware.catalogue import read_table
from epp.kube.objects.core import Container, Pod
from epp.kube.objects.limits import UNKNOWN_AMOUNT

_ACCELERATORS_OF: Mapping[str, re.Pattern[str]] = {
    "google.com": re.compile("tpu.*"),
    "cloud-tpus.google.com": re.compile("v[0-9].*"),
    "aws.amazon.com": re.compile("neuron.*"),
    "huawei.com": re.compile("ascend.*|npu.*", re.IGNORECASE),
    "gpu.intel.com": re.compile("i915|xe|xpu"),
}
"""Names of accelerators in domains that also have other resources."""
_AMOUNTS = re.compile(
    ".*(gpu-?mem|gpu-?memory|gpu-?cores?|gpu-core|vcuda-(core|memory)|dcu-?(mem|cores)|mem-?percentage|-memory|monitoring)"
    "|.*cores?-percentage|millicores|tiles|priority|memory.max",
    re.IGNORECASE,
)
"""Names of amounts of a device; another resource counts the devices."""
_NO_ACCELERATORS = re.compile(
    r"(.*\.)?(kubernetes\.io|k8s\.io|vpc\.amazonaws\.com|kubevirt\.io|cncf\.io|networking\.gke\.io\.networks"
    r"|mellanox\.com|tensor-fusion\.ai|openshift\.io|instaslice\.redhat\.com)"
    r"|rdma|smarter-devices|squat\.ai|(qat|dsa|iaa|dlb|sgx)\.intel\.com"
)
"""Domains of network cards, device files, addresses and quotas."""
_WORD = re.compile("[a-z0-9]+")
SLICER_DOMAINS = ("mig.das.com/", "instaslice.redhat.com/mig-")
"""Prefixes of resources of InstaSlice."""
_OF_CLASS = {
    "deviceclass.resource.kubernetes.io/gpu.nvidia.com": "nvidia.com/gpu",
    "deviceclass.resource.kubernetes.io/gpu.amd.com": "amd.com/gpu",
    "deviceclass.resource.kubernetes.io/gpu.intel.com": "gpu.intel.com/i915",
    "deviceclass.resource.kubernetes.io/tpu.google.com": "google.com/tpu",
}
"""Keyed by the extended resource of a DeviceClass that has no resource name of its own."""
_SAME_AS = {"nvidia.com/gpu.shared": "nvidia.com/gpu"}


class Maker(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    vendor: str
    kind: AcceleratorKind


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    domains: Mapping[str, Maker]
    """Vendor and kind by domain of the resource."""
    other_devices: frozenset[str]
    """Words in the names of resources that are not accelerators."""


_TABLE = read_table("resources.yaml", _Table)


def maker_of(name: str) -> Maker | None:
    """Return vendor and kind of the accelerators of a resource; None for other resources."""
    domain, _, rest = name.partition("/")
    maker = _TABLE.domains.get(domain.lower())
    if maker is None or is_no_accelerator(name) or _AMOUNTS.fullmatch(rest):
        return None
    pattern = _ACCELERATORS_OF.get(domain.lower())
    return maker if pattern is None or pattern.fullmatch(rest) else None


def is_no_accelerator(name: str) -> bool:
    """Return whether a resource counts CPUs, memory, network cards, addresses, device files and the like."""
    domain, slash, rest = name.partition("/")
    if not slash or _NO_ACCELERATORS.fullmatch(domain.lower()):
        return True
    return not _TABLE.other_devices.isdisjoint(_WORD.findall(rest.lower()))


class ResourceRequest(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    count: int
    """0 if unknown."""
    profile: str = ""
    """Canonical name of the MIG profile; empty for other devices and for an unsupported profile."""
    is_slice: bool = False
    vendor: str = ""
    kind: AcceleratorKind = AcceleratorKind.UNKNOWN
    known: bool = True
    """Whether the vendor or an object of the resource is known; otherwise it may count any devices."""


def resource_key(name: str) -> str:
    """Return one key for all spellings: `mig/3g.20gb` for slices, `nvidia.com/gpu` for whole and shared GPUs."""
    profile = profile_of(name)
    return f"mig/{profile}" if profile else _SAME_AS.get(name, name)


def profile_of(name: str) -> str:
    """Return the canonical MIG profile of a resource; empty for other resources."""
    return canonical_mig_name(name) or "" if name.startswith((*SLICER_DOMAINS, "nvidia.com/mig-")) else ""


def resource_requests(pod: Pod, more: Iterable[str] = ()) -> tuple[ResourceRequest, ...]:
    """Return the accelerators that the pod requests, by name; `more` are additional accelerator resources.

    The number is the sum over containers and sidecars, or a larger number of an init container. Unknown extended
    resources are only returned if there are no others, since they may be accelerators.
    """
    known, total = frozenset(more), extended_resources(pod)
    counted = [name for name in sorted(total) if name in known or profile_of(name) or not is_no_accelerator(name)]
    found = [_request(name, total[name], known) for name in counted]
    return tuple([each for each in found if each.known] or found)


def extended_resources(pod: Pod) -> Mapping[str, int]:
    """Return the requested number of each extended resource, accelerator or not; 0 for an impossible amount."""
    unknown = {name for _, amounts in amounts_in(pod) for name, amount in amounts.items() if amount == UNKNOWN_AMOUNT}
    sidecars = [each for each in pod.spec.init_containers if each.restart_policy == "Always"]
    total = Counter[str]()
    for container in (*pod.spec.containers, *sidecars):
        total.update(_amounts(container))
    for container in pod.spec.init_containers:
        if container.restart_policy != "Always":
            total |= _amounts(container)
    return {**dict.fromkeys(unknown, 0), **total}


def amounts_in(pod: Pod) -> Iterator[tuple[str, Mapping[str, Fraction]]]:
    """Yield the limits and the requests of each container by their place in the pod."""
    groups = (("containers", pod.spec.containers), ("initContainers", pod.spec.init_containers))
    for group, containers in groups:
        for index, each in enumerate(containers):
            yield f"spec.{group}[{index}].resources.limits", each.resources.limits
            yield f"spec.{group}[{index}].resources.requests", each.resources.requests


def _amounts(container: Container) -> Counter[str]:
    amounts = Counter[str]()
    for resources in (container.resources.limits, container.resources.requests):
        given = {name: amount for name, amount in resources.items() if "/" in name and 0 < amount != UNKNOWN_AMOUNT}
        # well-known DeviceClasses stand for a resource with a name of its own
        amounts |= Counter({_OF_CLASS.get(name, name): ceil(amount) for name, amount in given.items()})
    return amounts


def _request(name: str, count: int, more: frozenset[str]) -> ResourceRequest:
    profile = profile_of(name)
    maker = Maker("nvidia", AcceleratorKind.GPU) if profile else maker_of(name)
    if maker is None:
        return ResourceRequest(name=name, count=count, known=name in more)
    return ResourceRequest(
        name=name, count=count, profile=profile, is_slice=bool(profile), vendor=maker.vendor, kind=maker.kind
    )
