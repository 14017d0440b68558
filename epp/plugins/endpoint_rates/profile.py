# SPDX-License-Identifier: Apache-2.0
"""Profiles: measured or estimated rates of one model on one accelerator."""

import msgspec

from epp.framework import Natural, NonNegative, Parameters, Positive

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
    """Devices of the measured endpoint; 0 for figures of one device, which are multiplied by the devices of an
    endpoint."""
    chunk: Natural = 0
    """Tokens that the engine computes at a time. Documentation only: endpoints do not report it."""
    prefill_tokens_per_second: Positive | None = None
    """Prompt tokens computed in a second; 1000 / `deltaMs` if left out."""
    alpha_ms: Positive | None = None
    """Of `ITL = alpha + beta * batch`, the time between two tokens in ms."""
    beta_ms: NonNegative = 0.0
    """See `alphaMs`."""
    gamma_ms: NonNegative = 0.0
    """See `deltaMs`."""
    delta_ms: Positive | None = None
    """Of `TTFT = gamma + delta * tokens * batch`, the time to the first token in ms."""
    fp16_tflops: NonNegative = 0.0
    """Dense fp16 TFLOPS of one device, to scale prefill rates to accelerators without a profile; 0 for the built-in
    figure, if any."""
    bandwidth_gbps: NonNegative = msgspec.field(default=0.0, name="bandwidthGBps")
    """Memory bandwidth of one device in GB/s, to scale ITLs; 0 for the built-in figure, if any."""
    source: str = ""
    """Source of the figures. Documentation only."""

    def __post_init__(self) -> None:
        """Refuse a profile without figures."""
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
        """Devices of the measured endpoint."""
        return self.tensor_parallel or 1

    @property
    def prefill_rate(self) -> float | None:
        """Prompt tokens in a second; None if unknown."""
        if self.prefill_tokens_per_second is None and self.delta_ms is not None:
            return _MS_PER_S / self.delta_ms
        return self.prefill_tokens_per_second


def model_key(name: str) -> str:
    """Return the key of a model's name: lower case, without the organisation; empty for any."""
    key = name.rpartition("/")[2].strip().lower()
    return "" if key == "*" else key


def plain_key(name: str) -> str:
    """Return the key of an accelerator's or engine's name; empty for any."""
    key = name.strip().lower()
    return "" if key == "*" else key
