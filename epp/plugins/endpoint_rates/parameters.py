# SPDX-License-Identifier: Apache-2.0
"""Parameters of endpoint rates: profiles, and learning."""

from math import inf
from typing import Annotated

from msgspec import Meta

from epp.framework import Count, Parameters
from epp.framework.quantities import parse_duration
from epp.plugins.endpoint_rates.profile import RateProfile


class EndpointRatesParameters(Parameters, frozen=True):
    """Profiles, and learning from responses."""

    profile_path: str = ""
    """Path of a YAML or JSON file with a list of profiles, as in `profiles`; read with the configuration."""
    profiles: tuple[RateProfile, ...] = ()
    """Profiles that precede those of the file."""
    base_model: str = ""
    """Model whose profiles are used for models without any, such as the base model of LoRA adapters."""
    engine_label_key: str = "llm-d.ai/engine-type"
    """Endpoint label with the name of the engine."""
    default_engine: str = "vllm"
    """Engine of endpoints without that label."""
    learn: bool = True
    """Learn from responses; false keeps the rates of the profiles."""
    min_tokens: Count = 256
    """Least uncached prompt tokens of a sample of the prefill rate: with fewer, other work takes most of the time."""
    min_output_tokens: Annotated[int, Meta(ge=2)] = 16
    """Least generated tokens of a sample of the time between two tokens."""
    min_samples: Count = 5
    """Least samples of an endpoint before its learned rate is used."""
    window: Count = 31
    """Number of the latest samples of an endpoint whose median is used."""
    half_life: str = "10m"
    """Time without new samples in which the learned rate loses half of its weight."""
    prefix_match_info_producer_name: str = ""
    """Name of the producer instance whose matches are read, if configured; empty for the default one."""

    def __post_init__(self) -> None:
        """Refuse a malformed or empty duration."""
        try:
            seconds = parse_duration(self.half_life)
        except ValueError as error:
            raise ValueError(f"halfLife: {error}") from error
        if not 0.0 < seconds < inf:
            raise ValueError(f"halfLife is {self.half_life!r}; it must be above 0")
