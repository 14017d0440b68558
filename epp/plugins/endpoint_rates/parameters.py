"""What the rates of endpoints start from, and how they are learned."""

from math import inf
from typing import Annotated

from msgspec import Meta

from epp.framework import Count, Parameters
from epp.framework.durations import parse_duration
from epp.plugins.endpoint_rates.profile import RateProfile


class EndpointRatesParameters(Parameters, frozen=True):
    """What rates start from, and how they are learned."""

    profile_path: str = ""
    """A YAML or JSON file with a list of profiles, as in `profiles`; read once, when the configuration is."""
    profiles: tuple[RateProfile, ...] = ()
    """Profiles beside those of the file, which they go before."""
    base_model: str = ""
    """The model whose profiles count for requests whose own model has none: the base of LoRA adapters, say."""
    engine_label_key: str = "llm-d.ai/engine-type"
    """The endpoint label whose value names the engine."""
    default_engine: str = "vllm"
    """The engine of endpoints without that label."""
    learn: bool = True
    """Learn from responses; false leaves the rates of the profiles."""
    min_tokens: Count = 256
    """Uncached prompt tokens from which a request tells something of the prefill rate: of shorter ones, what is not
    prefill takes most of the time."""
    min_output_tokens: Annotated[int, Meta(ge=2)] = 16
    """Generated tokens from which a response tells something of the time between two of them."""
    min_samples: Count = 5
    """Responses from which on what was learned of an endpoint counts."""
    window: Count = 31
    """Responses whose median counts: the last so many of each endpoint."""
    half_life: str = "10m"
    """Time in which what was learned of an endpoint loses half of its weight, if nothing new is learned."""
    prefix_match_info_producer_name: str = ""
    """Name of the producer instance whose matches are read, if it is there; empty for the default one."""

    def __post_init__(self) -> None:
        """Refuse what is no duration."""
        try:
            seconds = parse_duration(self.half_life)
        except ValueError as error:
            raise ValueError(f"halfLife: {error}") from error
        if not 0.0 < seconds < inf:
            raise ValueError(f"halfLife is {self.half_life!r}; it must be above 0")
