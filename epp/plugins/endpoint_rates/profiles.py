# SPDX-License-Identifier: Apache-2.0
"""Profiles of rates: built-in, configured and measured (`epp calibrate`), and look-up by model and hardware."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import log, nan
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta

from epp.framework import AcceleratorTag, Natural, NonNegative, Parameters, Positive
from epp.framework.accelerators.tag import AcceleratorKind
from epp.framework.expected_times import DEFAULT_SOURCE
from epp.framework.input_errors import ParameterError, read_struct
from epp.framework.plain_yaml import read_mapping

_MS_PER_S = 1000.0


class RateProfile(Parameters, frozen=True):
    """Rates of one model on one accelerator, engine and number of devices; a key that is left out matches any.

    At least one of `prefillTokensPerSecond`, `alphaMs` and `deltaMs` must be given.
    """

    model: str = ""
    """Name of the model, case-insensitive and without its organisation: `qwen3-32b` also matches `Qwen/Qwen3-32B`."""
    accelerator: str = ""
    """Name of an AcceleratorClass, or of a device such as `h100`; `cpu` for none."""
    engine: str = ""
    """vllm, sglang, trtllm-serve ..."""
    tensor_parallel: Natural = 0
    """Devices of the measured endpoint; 0 for figures of one device, multiplied by the devices of an endpoint."""
    chunk: Natural = 0
    """Tokens that the engine computes at a time. Documentation only: endpoints do not report it."""
    prefill_tokens_per_second: Positive | None = None
    """Prompt tokens computed per second; 1000 / `deltaMs` if left out."""
    alpha_ms: Positive | None = None
    """`alpha` of `ITL = alpha + beta * batch`, the time between two tokens in ms."""
    beta_ms: NonNegative = 0.0
    """`beta`; see `alphaMs`."""
    gamma_ms: NonNegative = 0.0
    """`gamma`; see `deltaMs`."""
    delta_ms: Positive | None = None
    """`delta` of `TTFT = gamma + delta * tokens * batch`, the time to the first token in ms."""
    fp16_tflops: NonNegative = 0.0
    """Dense fp16 TFLOPS of one device, to scale prefill rates to other accelerators; 0 for the built-in figure."""
    bandwidth_gbps: NonNegative = msgspec.field(default=0.0, name="bandwidthGBps")
    """Memory bandwidth of one device in GB/s, to scale ITLs; 0 for the built-in figure."""
    source: str = ""
    """Source of the figures. Documentation only."""

    def __post_init__(self) -> None:
        if self.prefill_tokens_per_second is None and self.alpha_ms is None and self.delta_ms is None:
            raise ValueError(f"profile {self.label!r} has no rates; give prefillTokensPerSecond, alphaMs or deltaMs")

    @property
    def label(self) -> str:
        """`model/accelerator/engine/tensorParallel`, `*` for any; trailing ones are left out."""
        parts = [self.model, self.accelerator, self.engine, str(self.tensor_parallel or "")]
        while len(parts) > 1 and not parts[-1]:
            parts.pop()
        return "/".join(part or "*" for part in parts)

    @property
    def devices(self) -> int:
        return self.tensor_parallel or 1

    @property
    def prefill_rate(self) -> float | None:
        """Prompt tokens per second; None if unknown."""
        return self.prefill_tokens_per_second or (_MS_PER_S / self.delta_ms if self.delta_ms else None)


def model_key(name: str) -> str:
    """Return the key of a model's name: lower case, without the organisation; empty for any."""
    key = name.rpartition("/")[2].strip().lower()
    return "" if key == "*" else key


def plain_key(name: str) -> str:
    """Return the key of an accelerator's or engine's name; empty for any."""
    key = name.strip().lower()
    return "" if key == "*" else key


class DeviceFigures(NamedTuple):
    """Figures of one whole device, as published by its vendor."""

    vendor: str
    fp16_tflops: float
    """TFLOPS without sparsity."""
    bandwidth_gbps: float


_DEVICES: Mapping[str, DeviceFigures] = {
    "h100": DeviceFigures("nvidia", 989, 3350),
    "h200": DeviceFigures("nvidia", 989, 4800),
    "b200": DeviceFigures("nvidia", 2250, 8000),
    "a100": DeviceFigures("nvidia", 312, 2039),
    "l40s": DeviceFigures("nvidia", 362, 864),
    "mi300x": DeviceFigures("amd", 1307, 5300),
    "v6e": DeviceFigures("google", 918, 1640),
    "v7x": DeviceFigures("google", 2307, 7380),
}
"""Devices of the built-in profiles, for comparison with others."""

DEFAULT_PREFILL_TOKENS_PER_SECOND = 15928.0
"""Rate of endpoints without a profile in a pool without profiles."""
H100_PREFILL_TOKENS_PER_SECOND = 7964.0
"""Rate of one H100; reference for accelerators with a prefill rate but no ITL."""
DEFAULT_ITL_BASE_SECONDS = 0.010
DEFAULT_ITL_SECONDS_PER_REQUEST = 0.005 / 64


def _prefill(model: str, accelerator: str, engine: str, devices: int, rate: float, *, chunk: int = 0) -> RateProfile:
    return RateProfile(
        model=model,
        accelerator=accelerator,
        engine=engine,
        tensor_parallel=devices,
        chunk=chunk,
        prefill_tokens_per_second=rate,
    )


def _itl(accelerator: str, alone_ms: float, among_64_ms: float) -> RateProfile:
    return RateProfile(accelerator=accelerator, alpha_ms=alone_ms, beta_ms=(among_64_ms - alone_ms) / 64)


SEEDS: tuple[RateProfile, ...] = (
    _prefill("gpt-oss-120b", "h100", "vllm", 1, 39065, chunk=8192),
    _prefill("qwen3-32b", "h100", "vllm", 2, 15928, chunk=8192),
    _prefill("qwen3-32b", "h100", "sglang", 2, 15360, chunk=8192),
    _prefill("qwen3-32b", "v7x", "vllm", 8, 27336, chunk=8192),
    _prefill("qwen3-32b", "v6e", "vllm", 8, 26290, chunk=8192),
    _prefill("glm-5.2-nvfp4", "b200", "sglang", 8, 24027, chunk=32768),
    _prefill("qwen3-coder-480b-fp8", "v7x", "vllm", 8, 16444),
    _prefill("qwen3-vl-32b", "h200", "vllm", 2, 15751, chunk=8192),
    _prefill("llama-3.2-3b", "cpu", "vllm", 1, 1970, chunk=2048),
    RateProfile(accelerator="h100", prefill_tokens_per_second=H100_PREFILL_TOKENS_PER_SECOND),
    RateProfile(accelerator="cpu", prefill_tokens_per_second=197),
    _itl("h100", 10, 15),
    _itl("a100", 15, 25),
    _itl("l40s", 25, 35),
    _itl("mi300x", 12, 18),
)


_MS = 1e-3
_UNKNOWN_DEVICE = DeviceFigures("", 0.0, 0.0)


class Hardware(NamedTuple):
    """Properties of an endpoint that select and scale a profile."""

    names: tuple[str, ...] = ()
    """Names of the accelerator, most specific first."""
    vendor: str = ""
    fp16_tflops: float = 0.0
    """TFLOPS of one whole device; 0 if unknown."""
    bandwidth_gbps: float = 0.0
    """Memory bandwidth of one whole device; 0 if unknown."""
    devices: int = 0
    """Number of devices; 0 if unknown."""
    compute_fraction: float = 1.0
    memory_fraction: float = 1.0
    engine: str = ""


class KindRates(NamedTuple):
    """Rates of one kind of endpoint before anything is learned; fields as in `EndpointRates`."""

    prefill_tokens_per_second: float = DEFAULT_PREFILL_TOKENS_PER_SECOND
    itl_base_seconds: float = DEFAULT_ITL_BASE_SECONDS
    itl_seconds_per_request: float = DEFAULT_ITL_SECONDS_PER_REQUEST
    ttft_base_seconds: float = nan
    ttft_seconds_per_token: float = nan
    prefill_known: bool = False
    itl_known: bool = False
    prefill_source: str = DEFAULT_SOURCE
    itl_source: str = DEFAULT_SOURCE


class _Found(NamedTuple):
    profile: RateProfile
    speed: float
    """Speed of the endpoint relative to the profile."""
    source: str


class RateTable:
    """Configured profiles, then the built-in ones."""

    def __init__(self, given: Sequence[RateProfile]) -> None:
        self._lists = (tuple(given), SEEDS)
        self.models = frozenset(model_key(profile.model) for profiles in self._lists for profile in profiles)
        """Models with a profile, by `model_key`; empty for any."""

    def look_up(self, model: str, hardware: Hardware) -> KindRates:
        """Return the rates of a model, given by `model_key`, on some hardware."""
        rates = KindRates()
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
                found = _most_specific(of_model, hardware, by_bandwidth=by_bandwidth)
                found = found or _most_similar(of_model, hardware, by_bandwidth=by_bandwidth)
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


def _most_specific(profiles: Iterable[RateProfile], hardware: Hardware, *, by_bandwidth: bool) -> _Found | None:
    """Return the most specific profile of this accelerator, or of any accelerator."""
    ranks = {name: rank for rank, name in enumerate((*hardware.names, ""))}
    candidates = [profile for profile in profiles if plain_key(profile.accelerator) in ranks]
    if not candidates:
        return None

    def distance(profile: RateProfile) -> tuple[float, ...]:
        return (
            ranks[plain_key(profile.accelerator)],
            _mismatch(plain_key(profile.engine), hardware.engine),
            _mismatch(profile.tensor_parallel, hardware.devices),
            abs(log(profile.devices / (hardware.devices or profile.devices))),
        )

    best = min(candidates, key=distance)
    speed = _share(hardware, best, by_bandwidth=by_bandwidth)
    factor = "" if speed == 1.0 else f" x{speed:.3g}"
    return _Found(best, speed, f"profile {best.label}{factor}")


def _most_similar(profiles: Iterable[RateProfile], hardware: Hardware, *, by_bandwidth: bool) -> _Found | None:
    """Return the profile of the most similar accelerator: same vendor first, then closest figures."""
    own = hardware.bandwidth_gbps if by_bandwidth else hardware.fp16_tflops
    if not own:
        return None
    candidates: list[tuple[bool, float, int, float, RateProfile]] = []
    for order, profile in enumerate(profiles):
        device = _DEVICES.get(plain_key(profile.accelerator), _UNKNOWN_DEVICE)
        built_in = device.bandwidth_gbps if by_bandwidth else device.fp16_tflops
        reference = (profile.bandwidth_gbps if by_bandwidth else profile.fp16_tflops) or built_in
        if reference:
            ratio = own / reference
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


def _mismatch(wanted: str | int, actual: str | int) -> int:
    """Return 0 for equal values, 1 if the profile has no value, 2 for different values."""
    if not wanted:
        return 1
    return 0 if wanted == actual else 2


_LEAST_SHARE = 0.01


class ServerProfile(Parameters, frozen=True):
    """A file of `epp calibrate`, and the endpoints it applies to; a key that is left out matches any."""

    path: Annotated[str, Meta(min_length=1)]
    """Path of the file; read with the configuration."""
    accelerator: str = ""
    """Name of an AcceleratorClass, or of a device such as `h100`; `cpu` for none."""
    engine: str = ""
    """vllm, sglang, trtllm-serve ..."""
    tensor_parallel: Natural = 0
    """Devices of the measured endpoint; 0 for figures of one device, multiplied by the devices of an endpoint."""

    def rates(self) -> RateProfile:
        """Return the rates in the file; raises ValueError that names the file and the field."""
        where = f"serverProfiles: {self.path!r}"
        try:
            speed = read_struct(_Speed, read_mapping(Path(self.path)))
        except ParameterError as error:
            raise ValueError(f"{where}: {error.at('') if error.path else error}") from error
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from error
        alone = speed.seconds_per_output_token * _MS_PER_S
        return RateProfile(
            model=speed.model,
            accelerator=self.accelerator,
            engine=self.engine,
            tensor_parallel=self.tensor_parallel,
            prefill_tokens_per_second=speed.prefill_tokens_per_second,
            alpha_ms=alone * max(1 - speed.batch_slope, _LEAST_SHARE),  # for an empty batch
            beta_ms=alone * speed.batch_slope,
            source=self.path,
        )


class _Speed(msgspec.Struct, frozen=True):
    """The fields of a server profile that are rates."""

    model: str
    prefill_tokens_per_second: Positive
    seconds_per_output_token: Positive
    batch_slope: NonNegative = 0.0
