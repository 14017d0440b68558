# SPDX-License-Identifier: Apache-2.0
"""Looks up the rates of a model on an accelerator in profiles, from the most to the least specific."""

from collections.abc import Callable, Iterable, Sequence
from math import log, nan
from typing import NamedTuple

from epp.framework import AcceleratorTag
from epp.framework.accelerators.tag import AcceleratorKind
from epp.plugins.endpoint_rates.profile import RateProfile, model_key, plain_key
from epp.plugins.endpoint_rates.seeds import (
    DEFAULT_ITL_BASE_SECONDS,
    DEFAULT_ITL_SECONDS_PER_REQUEST,
    DEFAULT_PREFILL_TOKENS_PER_SECOND,
    DEVICES,
    H100_PREFILL_TOKENS_PER_SECOND,
    SEEDS,
    DeviceFigures,
)

_MS = 1e-3
_UNKNOWN_DEVICE = DeviceFigures("", 0.0, 0.0)


class Hardware(NamedTuple):
    """Properties of an endpoint that select and scale a profile."""

    names: tuple[str, ...] = ()
    """Names of the accelerator, most specific first."""
    vendor: str = ""
    fp16_tflops: float = 0.0
    """Of one whole device; 0 if unknown."""
    bandwidth_gbps: float = 0.0
    """Of one whole device; 0 if unknown."""
    devices: int = 0
    """0 if unknown."""
    compute_fraction: float = 1.0
    memory_fraction: float = 1.0
    engine: str = ""


class StartingRates(NamedTuple):
    """Rates of one kind of endpoint before anything is learned; fields as in `EndpointRates`."""

    prefill_tokens_per_second: float = DEFAULT_PREFILL_TOKENS_PER_SECOND
    itl_base_seconds: float = DEFAULT_ITL_BASE_SECONDS
    itl_seconds_per_request: float = DEFAULT_ITL_SECONDS_PER_REQUEST
    ttft_base_seconds: float = nan
    ttft_seconds_per_token: float = nan
    prefill_known: bool = False
    itl_known: bool = False
    prefill_source: str = "default"
    itl_source: str = "default"


class _Found(NamedTuple):
    profile: RateProfile
    speed: float
    """Speed of the endpoint relative to the profile."""
    source: str


class RateTable:
    """Given profiles, then the built-in ones."""

    def __init__(self, given: Sequence[RateProfile]) -> None:
        self._lists = (tuple(given), SEEDS)
        self.models = frozenset(model_key(profile.model) for profiles in self._lists for profile in profiles)
        """Models with a profile, by `model_key`; empty for any."""

    def look_up_all(self, model: str, hardware: Iterable[Hardware]) -> Sequence[StartingRates]:
        """Return the rates of a model, given by `model_key`, on each hardware."""
        return [self.look_up(model, one) for one in hardware]

    def look_up(self, model: str, hardware: Hardware) -> StartingRates:
        """Return the rates of a model, given by `model_key`, on some hardware."""
        rates = StartingRates()
        prefill = self._find(model, hardware, lambda profile: profile.prefill_rate is not None, by_bandwidth=False)
        if prefill is not None:
            rate = (prefill.profile.prefill_rate or 0.0) * prefill.speed
            rates = rates._replace(prefill_tokens_per_second=rate, prefill_known=True, prefill_source=prefill.source)
        itl = self._find(model, hardware, lambda profile: profile.alpha_ms is not None, by_bandwidth=True)
        if itl is not None:
            rates = rates._replace(
                itl_base_seconds=(itl.profile.alpha_ms or 0.0) * _MS / itl.speed,
                itl_seconds_per_request=itl.profile.beta_ms * _MS / itl.speed,
                itl_known=True,
                itl_source=itl.source,
            )
        elif prefill is not None:
            slower = H100_PREFILL_TOKENS_PER_SECOND / rates.prefill_tokens_per_second
            rates = rates._replace(
                itl_base_seconds=DEFAULT_ITL_BASE_SECONDS * slower,
                itl_seconds_per_request=DEFAULT_ITL_SECONDS_PER_REQUEST * slower,
                itl_known=True,
                itl_source="scaled from h100 by prefill rate",
            )
        ttft = self._find(model, hardware, lambda profile: profile.delta_ms is not None, by_bandwidth=False)
        if ttft is not None:
            rates = rates._replace(
                ttft_base_seconds=ttft.profile.gamma_ms * _MS,
                ttft_seconds_per_token=(ttft.profile.delta_ms or 0.0) * _MS / ttft.speed,
            )
        return rates

    def _find(
        self, model: str, hardware: Hardware, has: Callable[[RateProfile], bool], *, by_bandwidth: bool
    ) -> _Found | None:
        for profiles in self._lists:
            for name in dict.fromkeys((model, "")):
                of_model = [profile for profile in profiles if model_key(profile.model) == name and has(profile)]
                found = _of_accelerator(of_model, hardware, by_bandwidth=by_bandwidth)
                found = found or _scaled(of_model, hardware, by_bandwidth=by_bandwidth)
                if found is not None:
                    return found
        return None


def hardware_of(tag: AcceleratorTag, engine: str) -> Hardware:
    """Return the properties of a tag and an engine that select and scale a profile."""
    names = [plain_key(name) for name in (*tag.classes, tag.model, tag.family)]
    if tag.kind is AcceleratorKind.CPU:
        names.append("cpu")
    return Hardware(
        names=tuple(dict.fromkeys(name for name in names if name)),
        vendor=tag.vendor,
        fp16_tflops=tag.performance.fp16,
        bandwidth_gbps=tag.bandwidth_gbps or 0.0,
        devices=tag.count,
        compute_fraction=tag.partition.compute_fraction,
        memory_fraction=tag.partition.memory_fraction,
        engine=plain_key(engine),
    )


def _of_accelerator(profiles: Iterable[RateProfile], hardware: Hardware, *, by_bandwidth: bool) -> _Found | None:
    """Return the most specific profile of this accelerator, or of any."""
    ranks = {name: rank for rank, name in enumerate((*hardware.names, ""))}
    candidates = [profile for profile in profiles if plain_key(profile.accelerator) in ranks]
    if not candidates:
        return None

    def distance(profile: RateProfile) -> tuple[float, ...]:
        return (
            ranks[plain_key(profile.accelerator)],
            _unlike(plain_key(profile.engine), hardware.engine),
            _unlike(profile.tensor_parallel, hardware.devices),
            abs(log(profile.devices / (hardware.devices or profile.devices))),
        )

    best = min(candidates, key=distance)
    speed = _share(hardware, best, by_bandwidth=by_bandwidth)
    factor = "" if speed == 1.0 else f" x{speed:.3g}"
    return _Found(best, speed, f"profile {best.label}{factor}")


def _scaled(profiles: Iterable[RateProfile], hardware: Hardware, *, by_bandwidth: bool) -> _Found | None:
    """Return the profile of the most similar accelerator: same vendor first, then closest figures."""
    own = hardware.bandwidth_gbps if by_bandwidth else hardware.fp16_tflops
    if not own:
        return None
    known = dict(DEVICES)
    candidates: list[tuple[bool, float, int, float, RateProfile]] = []
    for order, profile in enumerate(profiles):
        device = known.get(plain_key(profile.accelerator), _UNKNOWN_DEVICE)
        built_in = device.bandwidth_gbps if by_bandwidth else device.fp16_tflops
        theirs = (profile.bandwidth_gbps if by_bandwidth else profile.fp16_tflops) or built_in
        if theirs:
            ratio = own / theirs
            candidates.append((device.vendor != hardware.vendor, abs(log(ratio)), order, ratio, profile))
    if not candidates:
        return None
    *_, ratio, profile = min(candidates)
    speed = ratio * _share(hardware, profile, by_bandwidth=by_bandwidth)
    measure = "bandwidth" if by_bandwidth else "TFLOPS"
    return _Found(profile, speed, f"scaled from {plain_key(profile.accelerator)} by {measure}")


def _share(hardware: Hardware, profile: RateProfile, *, by_bandwidth: bool) -> float:
    """Return the endpoint's devices, as fractions for slices, over the devices of the profile."""
    devices = hardware.devices or profile.devices
    fraction = hardware.memory_fraction if by_bandwidth else hardware.compute_fraction
    return devices * (fraction or 1.0) / profile.devices


def _unlike(said: str | int, actual: str | int) -> int:
    """Return 0 for equal values, 1 if the profile has none, 2 for different ones."""
    if not said:
        return 1
    return 0 if said == actual else 2
