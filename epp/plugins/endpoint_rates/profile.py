"""What somebody measured, or guessed, of one model on one accelerator."""

import msgspec

from epp.framework import Natural, NonNegative, Parameters, Positive

_MS_PER_S = 1000.0


class RateProfile(Parameters, frozen=True):
    """Rates of one model on one accelerator, engine and number of devices; what is left out stands for any.

    At least one of `prefillTokensPerSecond`, `alphaMs` and `deltaMs` must be given.
    """

    model: str = ""
    """Name of the model, in any case and without its organisation: `qwen3-32b` stands for `Qwen/Qwen3-32B` too."""
    accelerator: str = ""
    """Name of an AcceleratorClass, or of a device such as `h100`; `cpu` for none."""
    engine: str = ""
    """vllm, sglang, trtllm-serve ..."""
    tensor_parallel: Natural = 0
    """Devices that the figures are of, together; 0 for the figures of one device, where endpoints with more of them are
    taken to be as much faster."""
    chunk: Natural = 0
    """Tokens that the engine computes at a time, for the reader: endpoints do not say theirs."""
    prefill_tokens_per_second: Positive | None = None
    """Prompt tokens computed in a second; left out, it is 1000 / `deltaMs`."""
    alpha_ms: Positive | None = None
    """Of `ITL = alpha + beta * batch`, the time between two tokens in ms."""
    beta_ms: NonNegative = 0.0
    """See `alphaMs`."""
    gamma_ms: NonNegative = 0.0
    """See `deltaMs`."""
    delta_ms: Positive | None = None
    """Of `TTFT = gamma + delta * tokens * batch`, the time to the first token in ms."""
    fp16_tflops: NonNegative = 0.0
    """Dense fp16 TFLOPS of one device, by which prefill rates are scaled to accelerators without a profile; 0 for what
    is built in, if anything is."""
    bandwidth_gbps: NonNegative = msgspec.field(default=0.0, name="bandwidthGBps")
    """Memory bandwidth of one device in GB/s, by which ITLs are scaled; 0 for what is built in, if anything is."""
    source: str = ""
    """Where the figures are from, for the reader."""

    def __post_init__(self) -> None:
        """Refuse a profile without figures."""
        if self.prefill_tokens_per_second is None and self.alpha_ms is None and self.delta_ms is None:
            raise ValueError(f"profile {self.label!r} says nothing; give prefillTokensPerSecond, alphaMs or deltaMs")

    @property
    def label(self) -> str:
        """`model/accelerator/engine/tensorParallel`, `*` for any, without those at the end that stand for any."""
        parts = [self.model, self.accelerator, self.engine, str(self.tensor_parallel or "")]
        while len(parts) > 1 and not parts[-1]:
            parts.pop()
        return "/".join(part or "*" for part in parts)

    @property
    def devices(self) -> int:
        """Devices that the figures are of."""
        return self.tensor_parallel or 1

    @property
    def prefill_rate(self) -> float | None:
        """Prompt tokens in a second; None where nothing is said of it."""
        if self.prefill_tokens_per_second is None and self.delta_ms is not None:
            return _MS_PER_S / self.delta_ms
        return self.prefill_tokens_per_second


def model_key(name: str) -> str:
    """Return a model's name as profiles are looked up by it: lower case, without the organisation; empty for any."""
    key = name.rpartition("/")[2].strip().lower()
    return "" if key == "*" else key


def plain_key(name: str) -> str:
    """Return an accelerator's or engine's name as it is compared; empty for any."""
    key = name.strip().lower()
    return "" if key == "*" else key
