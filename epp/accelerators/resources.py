"""Extended resources: which of them are accelerators, under what names, and how many of them a pod asks for."""

from collections import Counter
from collections.abc import Iterable
from math import ceil

import msgspec

from epp.accelerators.mig import parse_mig_profile
from epp.accelerators.objects.core import Container, Pod
from epp.framework.accelerators import AcceleratorKind

SLICER_DOMAINS = ("mig.das.com/", "instaslice.redhat.com/mig-")
"""Resources that InstaSlice makes slices for."""
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


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """An accelerator resource that a pod asks for."""

    name: str
    count: int
    profile: str = ""
    """Canonical name of the MIG profile."""
    vendor: str = ""
    kind: AcceleratorKind = AcceleratorKind.UNKNOWN


def resource_key(name: str) -> str:
    """Return one name for all spellings: `mig/3g.20gb` for slices, `nvidia.com/gpu` for shared GPUs as well."""
    profile = profile_of(name)
    return f"mig/{profile}" if profile else _SAME_AS.get(name, name)


def profile_of(name: str) -> str:
    """Return the canonical MIG profile that a resource is for; empty where it is for none."""
    if not name.startswith((*SLICER_DOMAINS, "nvidia.com/mig-")):
        return ""
    profile = parse_mig_profile(name)
    return "" if profile is None else profile.name


def asked_of(pod: Pod, more: Iterable[str] = ()) -> tuple[Asked, ...]:
    """Return the accelerators that the pod asks for, by name; `more` are resources that are accelerators as well.

    As many as its containers want together, or the init container that wants most: those have ended by then.
    """
    known = frozenset(more)
    beside = Counter[str]()
    for container in (*pod.spec.containers, *(each for each in pod.spec.init_containers if _stays(each))):
        beside.update(_wanted(container))
    for container in pod.spec.init_containers:
        beside |= Counter() if _stays(container) else _wanted(container)
    return tuple(found for name in sorted(beside) if (found := _asked(name, beside[name], known)) is not None)


def _stays(container: Container) -> bool:
    return container.restart_policy == "Always"


def _wanted(container: Container) -> Counter[str]:
    asked = Counter[str]()
    for amounts in (container.resources.limits, container.resources.requests):
        asked |= Counter({name: ceil(amount) for name, amount in amounts.items() if "/" in name and amount > 0})
    return asked


def _asked(name: str, count: int, more: frozenset[str]) -> Asked | None:
    profile = profile_of(name)
    if profile:
        return Asked(name=name, count=count, profile=profile, vendor="nvidia", kind=AcceleratorKind.GPU)
    families = (found for prefix, found in _FAMILIES.items() if name.startswith(prefix))
    vendor_and_kind = _WHOLE.get(name) or next(families, None)
    if vendor_and_kind is None:
        return Asked(name=name, count=count) if name in more else None
    return Asked(name=name, count=count, vendor=vendor_and_kind[0], kind=vendor_and_kind[1])
