# SPDX-License-Identifier: Apache-2.0
"""Bounds and preferences for accelerators, as parameters of plugins."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Literal, TypeAlias

import msgspec

from epp.framework.accelerators.selection import Selection
from epp.framework.accelerators.tag import PRECISIONS, AcceleratorKind, Precision, SpotPreference
from epp.framework.limits import Natural, NonNegative
from epp.framework.plugin import Parameters
from epp.framework.quantities import canonical_mig_name, gib_text, parse_memory
from epp.framework.request_conditions import HIGHEST_PREFERENCE, Preference
from epp.framework.roles import FilterParameters
from epp.framework.suggestions import hint_at

MOST_COMPUTE_SLICES = 7
"""Compute slices of a whole device."""

Memory: TypeAlias = str | float
"""A quantity such as `40Gi`, or a number of GiB."""

POLICIES: Mapping[str, str] = {
    "bestfit": "best-fit",
    "balanced": "best-fit",
    "cheapest": "cheapest",
    "cost": "cheapest",
    "mostcapable": "most-capable",
    "performance": "most-capable",
    "firstavailable": "first-available",
}
STRATEGIES = ("cost", "performance", "balanced")
"""Policies that use costs and times of the request; those in POLICIES only use facts about the hardware."""
_KINDS = tuple(kind.value for kind in AcceleratorKind if kind is not AcceleratorKind.UNKNOWN)
_Word: TypeAlias = Literal["Pass", "Fail"]
UnknownRule: TypeAlias = _Word | dict[str, _Word]


class CostCap(Parameters, frozen=True):
    """A maximum of the price per hour, and its basis."""

    value: NonNegative
    """US dollars per hour."""
    basis: Literal["endpoint", "device"] = "endpoint"
    """`endpoint`: all devices of the endpoint together; `device`: each device or slice."""


class SelectionParameters(FilterParameters, frozen=True):
    """Bounds on accelerators, and preferences among accelerators within the bounds, which scorers read."""

    accelerator_classes: tuple[str, ...] = ()
    """Keep only these AcceleratorClasses. An endpoint without a class is matched by its accelerator's model, such as
    `h100`. An unknown name matches no endpoint; the other names still count."""
    excluded_classes: tuple[str, ...] = ()
    """Drop these AcceleratorClasses."""
    architecture_families: tuple[str, ...] = ()
    """Keep only these families: `hopper`, or `nvidia-hopper` with the vendor."""
    vendors: tuple[str, ...] = ()
    """Keep only these vendors: `nvidia`, `amd`, `intel`, `google`."""
    kinds: tuple[str, ...] = ()
    """Keep only these kinds: `gpu`, `tpu`, `xpu`, `npu` or `cpu`. With any other bound, CPUs are dropped."""
    models: tuple[str, ...] = ()
    """Keep only these models: `h100`, `mi300x`."""
    resources: tuple[str, ...] = ()
    """Keep only endpoints whose pod requests one of these: `nvidia.com/gpu`, `nvidia.com/mig-3g.20gb`."""
    required_features: tuple[str, ...] = ()
    """Keep only accelerators with all of these features, case-insensitive: `fp8`, `nvlink`."""
    min_memory: Memory | None = None
    """Minimum memory of each device or slice: a quantity such as `80Gi`, or a number of GiB. 3 % less is accepted,
    because devices have slightly less than their nominal size."""
    max_memory: Memory | None = None
    """Maximum memory of each device or slice; 3 % more is accepted."""
    min_total_memory: Memory | None = None
    """Minimum memory of all devices or slices of the endpoint together; 3 % less is accepted."""
    min_architecture_version: str | float = ""
    """Minimum compute capability, such as `9.0`, compared number by number."""
    min_memory_bandwidth: NonNegative = msgspec.field(default=0.0, name="minMemoryBandwidthGBps")
    """Minimum memory bandwidth of each device or slice in GB/s; 3 % less is accepted."""
    min_performance: dict[Precision, NonNegative] = msgspec.field(default_factory=dict)
    """Minimum TFLOPS (TOPS for integers) of each device or slice by precision: `{fp16: 300}`; 3 % less is accepted."""
    node_selector: dict[str, str] = msgspec.field(default_factory=dict)
    """Keep only endpoints on nodes with all of these labels; `metadata.name` is the name. Unknown nodes never match."""
    max_cost_per_hour: NonNegative | CostCap | None = None
    """Maximum price of the endpoint in US dollars per hour; an object also sets the basis."""
    max_cost_per_million_tokens: NonNegative | None = None
    """Maximum price of a million tokens in US dollars."""
    spot_preference: SpotPreference | None = None
    """Use of the spot price: on spot nodes (`auto`, the default), whenever it is known (`always`), or `never`."""
    mig_profiles: tuple[str, ...] = ()
    """Keep only slices of these MIG profiles, in any spelling: `3g.20gb`, `nvidia.com/mig-1g.5gb.me`."""
    excluded_mig_profiles: tuple[str, ...] = ()
    """Drop slices of these MIG profiles."""
    min_compute_slices: Natural = 0
    """Minimum compute slices of each slice; a whole device has 7."""
    whole_device_only: bool = False
    """Drop slices and shared devices."""
    policy: str = ""
    """Preference: `BestFit` (or `balanced`), `Cheapest` (`cost`), `MostCapable` (`performance`), `FirstAvailable`."""
    strategy: Literal["", "cost", "performance", "balanced"] = ""
    """Preference, instead of a policy: weights of the price of the request, its expected times and the load, as in
    `strategy-scorer`."""
    min_compute_performance_tflops: NonNegative = msgspec.field(default=0.0, name="minComputePerformanceTFLOPS")
    """Preference: minimum TFLOPS; an endpoint with less is not dropped."""
    preferred_precisions: tuple[str, ...] = ()
    """Preference: precisions, best first: `fp32`, `fp16`, `fp8`, `int8`, `int4`."""
    preference_order: tuple[str | Preference, ...] = ()
    """Preference: classes, best first: names, or `{class, score, conditions}` as in `preference-order-scorer`. The
    i-th of n names, counted from 0, has the score `100 * (1 - i / n)`."""
    class_stickiness_seconds: NonNegative = 0.0
    """Preference: expected time that a request may lose to stay on the accelerator class that served its session; 0 for
    no such preference. `served-class-producer` records the classes."""

    def __post_init__(self) -> None:
        bounds = self.selection()
        refuse_empty_range(bounds)
        refuse_both("acceleratorClasses", bounds.classes, "excludedClasses", bounds.excluded_classes)
        refuse_both("migProfiles", bounds.mig_profiles, "excludedMigProfiles", bounds.excluded_mig_profiles)
        if self.policy and self.strategy:
            raise ValueError("strategy replaces policy: leave one of them out")
        if bounds.whole_device_only and bounds.mig_profiles:
            raise ValueError("migProfiles keeps only slices and wholeDeviceOnly drops them: leave one of them out")

    def selection(self) -> Selection:
        """Return the bounds as numbers and names in lower case; raises ValueError."""
        cap = self.max_cost_per_hour
        dollars = cap.value if isinstance(cap, CostCap) else cap
        of_device = isinstance(cap, CostCap) and cap.basis == "device"
        return Selection(
            policy=self.strategy or _policy(self.policy),
            classes=_names("acceleratorClasses", self.accelerator_classes),
            excluded_classes=frozenset(_names("excludedClasses", self.excluded_classes)),
            families=_names("architectureFamilies", self.architecture_families),
            vendors=_names("vendors", self.vendors),
            kinds=_names("kinds", self.kinds, of=_KINDS),
            models=_names("models", self.models),
            resources=_names("resources", self.resources),
            required_features=frozenset(_names("requiredFeatures", self.required_features)),
            min_memory_bytes=read_memory("minMemory", self.min_memory) or 0,
            max_memory_bytes=read_memory("maxMemory", self.max_memory),
            min_total_memory_bytes=read_memory("minTotalMemory", self.min_total_memory) or 0,
            min_compute_capability=_version(str(self.min_architecture_version)),
            min_bandwidth_gbps=self.min_memory_bandwidth,
            min_performance=tuple(sorted((name, figure) for name, figure in self.min_performance.items() if figure)),
            node_selector=frozenset(self.node_selector.items()),
            max_endpoint_cost_per_hour=None if of_device else dollars,
            max_device_cost_per_hour=dollars if of_device else None,
            max_cost_per_million_tokens=self.max_cost_per_million_tokens,
            spot_preference=self.spot_preference,
            mig_profiles=read_profiles("migProfiles", self.mig_profiles),
            excluded_mig_profiles=frozenset(read_profiles("excludedMigProfiles", self.excluded_mig_profiles)),
            min_compute_slices=self.min_compute_slices,
            whole_device_only=self.whole_device_only,
            min_tflops=self.min_compute_performance_tflops,
            preferred_precisions=_names("preferredPrecisions", self.preferred_precisions, of=PRECISIONS),
            preference_order=tuple(preferences(self.preference_order)),
            class_stickiness_seconds=self.class_stickiness_seconds,
        )


_PREFERENCES = {
    *("fallback_on_empty", "spot_preference", "policy", "strategy"),
    *("min_compute_performance_tflops", "preferred_precisions", "preference_order", "class_stickiness_seconds"),
}
_BOUNDS = [each.encode_name for each in msgspec.structs.fields(SelectionParameters) if each.name not in _PREFERENCES]


def preferences(entries: Collection[str | Preference]) -> Iterator[Preference]:
    """Yield the preferences of a list; raises ValueError for an empty name."""
    for place, entry in enumerate(entries):
        name = entry if isinstance(entry, str) else entry.accelerator_class
        if not name.strip():
            raise ValueError("preferenceOrder has an empty entry; write a name or remove it")
        if isinstance(entry, str):
            yield Preference(name.strip().lower(), HIGHEST_PREFERENCE * (1 - place / len(entries)))
        else:
            yield msgspec.structs.replace(entry, accelerator_class=name.strip().lower())


def refuse_empty_range(bounds: Selection) -> None:
    """Raise ValueError if the minimum memory is above the maximum, or no device has so many compute slices."""
    least, most = bounds.min_memory_bytes, bounds.max_memory_bytes
    if most is not None and least > most:
        raise ValueError(
            f"minMemory is {gib_text(least)}, above maxMemory, {gib_text(most)}, and no device is within both: "
            "write the smaller size as minMemory"
        )
    if bounds.min_compute_slices > MOST_COMPUTE_SLICES:
        raise ValueError(
            f"minComputeSlices is {bounds.min_compute_slices}, and a whole device has {MOST_COMPUTE_SLICES}: "
            f"write {MOST_COMPUTE_SLICES} or less"
        )


def refuse_both(allowing: str, allowed: Iterable[str], denying: str, denied: Collection[str]) -> None:
    """Raise ValueError if a name is both allowed and denied."""
    both = [name for name in allowed if name in denied]
    if both:
        raise ValueError(f"{denying} and {allowing} both have {both[0]!r}: leave it out of one of them")


def unknown_passes(rule: UnknownRule) -> frozenset[str]:
    """Return the bounds that an unknown value passes: all for `Pass`, none for `Fail`; raises ValueError."""
    rules = dict.fromkeys(_BOUNDS, rule) if isinstance(rule, str) else rule
    for bound in rules:
        if bound not in _BOUNDS:
            raise ValueError(f"onUnknown names {bound!r}, which is not a bound; {hint_at(bound, _BOUNDS)}")
    return frozenset(bound for bound, word in rules.items() if word == "Pass")


def _names(field: str, names: Iterable[str], *, of: tuple[str, ...] = ()) -> tuple[str, ...]:
    lower = tuple(dict.fromkeys(name.strip().lower() for name in names))
    if "" in lower:
        raise ValueError(f"{field} has an empty entry; write a name or remove it")
    for name in lower:
        if of and name not in of:
            raise ValueError(f"{field} has {name!r}; use {', '.join(of)}")
    return lower


def read_profiles(field: str, names: Iterable[str]) -> tuple[str, ...]:
    """Return canonical names of MIG profiles; raises a ValueError with the field."""
    found = {name: canonical_mig_name(name) for name in names}
    for name, canonical in found.items():
        if canonical is None:
            raise ValueError(f"{field} has {name!r}, which is not a MIG profile; write one like 3g.20gb or 1g.5gb+me")
    return tuple(dict.fromkeys(canonical for canonical in found.values() if canonical))


def read_memory(field: str, size: Memory | None) -> int | None:
    """Return bytes, or None for None; raises a ValueError with the field."""
    if size is None:
        return None
    try:
        return parse_memory(size)
    except ValueError as error:
        raise ValueError(f"{field}: {error}") from error


def _version(text: str) -> tuple[int, ...]:
    parts = text.split(".") if text else []
    if not all(part.isascii() and part.isdecimal() for part in parts):
        raise ValueError(f"minArchitectureVersion is {text!r}; write a version such as 9.0")
    return tuple(map(int, parts))


def _policy(name: str) -> str:
    if not name:
        return ""
    found = POLICIES.get(name.strip().lower().replace("-", ""))
    if found is None:
        raise ValueError(f"policy is {name!r}; use BestFit, Cheapest, MostCapable or FirstAvailable")
    return found
