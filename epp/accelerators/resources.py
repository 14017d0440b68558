# SPDX-License-Identifier: Apache-2.0
"""Extended resources of accelerators: their names, and the number that a pod requests."""

from collections import Counter
from collections.abc import Iterable
from fractions import Fraction
from math import ceil

import msgspec

from epp.accelerators.mig import parse_mig_profile
from epp.accelerators.mig.vetting import NodeGpus
from epp.framework.accelerators.tag import AcceleratorKind
from epp.objects.core import Container, Pod
from epp.objects.limits import UNKNOWN_AMOUNT

SLICER_DOMAINS = ("mig.das.com/", "instaslice.redhat.com/mig-")
"""Prefixes of the resources for which InstaSlice creates slices."""
_WHOLE = {
    "nvidia.com/gpu": ("nvidia", AcceleratorKind.GPU),
    "nvidia.com/gpu.shared": ("nvidia", AcceleratorKind.GPU),
    "nvidia.com/pgpu": ("nvidia", AcceleratorKind.GPU),
    "gpu.intel.com/i915": ("intel", AcceleratorKind.XPU),
    "gpu.intel.com/xe": ("intel", AcceleratorKind.XPU),
    "google.com/tpu": ("google", AcceleratorKind.TPU),
    "habana.ai/gaudi": ("intel", AcceleratorKind.NPU),
    "aws.amazon.com/neuron": ("aws", AcceleratorKind.NPU),
    "aws.amazon.com/neurondevice": ("aws", AcceleratorKind.NPU),
}
_FAMILIES = {
    "amd.com/": ("amd", AcceleratorKind.GPU),
    "huawei.com/Ascend": ("huawei", AcceleratorKind.NPU),
}
_SAME_AS = {"nvidia.com/gpu.shared": "nvidia.com/gpu"}


class ResourceRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A resource request of a pod for accelerators."""

    name: str
    count: int
    """0 if unknown."""
    profile: str = ""
    """Canonical name of the MIG profile; empty for a device that is none, or for a profile that no GPU there has."""
    is_slice: bool = False
    vendor: str = ""
    kind: AcceleratorKind = AcceleratorKind.UNKNOWN


def resource_key(name: str) -> str:
    """Return the same key for all spellings: `mig/3g.20gb` for slices, `nvidia.com/gpu` also for shared GPUs."""
    profile = profile_of(name)
    return f"mig/{profile}" if profile else _SAME_AS.get(name, name)


def profile_of(name: str) -> str:
    """Return the canonical MIG profile of a resource; empty for a resource of another kind."""
    if not name.startswith((*SLICER_DOMAINS, "nvidia.com/mig-")):
        return ""
    profile = parse_mig_profile(name)
    return "" if profile is None else profile.name


def resource_requests(pod: Pod, more: Iterable[str] = ()) -> tuple[ResourceRequest, ...]:
    """Return the accelerators that the pod requests, by name; `more` are further resources that count as accelerators.

    The number is the sum over containers and sidecars, or the maximum over init containers if that is larger.
    """
    known = frozenset(more)
    total = Counter[str]()
    unknown = _unknown_amounts(pod)
    for container in (*pod.spec.containers, *filter(_is_sidecar, pod.spec.init_containers)):
        total.update(_amounts(container))
    for container in pod.spec.init_containers:
        total |= Counter() if _is_sidecar(container) else _amounts(container)
    counts = {**dict.fromkeys(unknown, 0), **total}
    return tuple(found for name in sorted(counts) if (found := _request(name, counts[name], known)) is not None)


def possible(requested: Iterable[ResourceRequest], gpus: NodeGpus) -> tuple[ResourceRequest, ...]:
    """Return the requests, those for slices without profiles that the GPUs cannot have."""
    return tuple(
        msgspec.structs.replace(each, profile="") if each.profile and gpus.fault_of(each.profile) else each
        for each in requested
    )


def _unknown_amounts(pod: Pod) -> frozenset[str]:
    """Return the resources that the pod requests an impossible amount of."""
    return frozenset(
        name
        for container in (*pod.spec.containers, *pod.spec.init_containers)
        for amounts in (container.resources.limits, container.resources.requests)
        for name, amount in amounts.items()
        if amount == UNKNOWN_AMOUNT
    )


def _is_sidecar(container: Container) -> bool:
    return container.restart_policy == "Always"


def _amounts(container: Container) -> Counter[str]:
    amounts = Counter[str]()
    for resources in (container.resources.limits, container.resources.requests):
        amounts |= Counter({name: ceil(amount) for name, amount in resources.items() if _is_given(name, amount)})
    return amounts


def _is_given(name: str, amount: Fraction) -> bool:
    return "/" in name and amount > 0 and amount != UNKNOWN_AMOUNT


def _request(name: str, count: int, more: frozenset[str]) -> ResourceRequest | None:
    profile = profile_of(name)
    if profile:
        return ResourceRequest(
            name=name, count=count, profile=profile, is_slice=True, vendor="nvidia", kind=AcceleratorKind.GPU
        )
    families = (found for prefix, found in _FAMILIES.items() if name.startswith(prefix))
    vendor_and_kind = _WHOLE.get(name) or next(families, None)
    if vendor_and_kind is None:
        return ResourceRequest(name=name, count=count) if name in more else None
    return ResourceRequest(name=name, count=count, vendor=vendor_and_kind[0], kind=vendor_and_kind[1])
