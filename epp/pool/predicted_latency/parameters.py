# SPDX-License-Identifier: Apache-2.0
"""Parameters of the producer of predicted latency."""

from math import inf
from typing import Annotated

import msgspec

from epp.framework import Natural, Parameters, Positive, Tunable
from epp.framework.quantities import parse_duration

_NS_PER_S = 1e9


class PredictedLatencyParameters(Parameters, frozen=True):
    """Times that are predicted, and limits."""

    streaming_mode: bool = False
    """Whether responses are streamed: the time to the first token and that for each further token are predicted. With
    false, the time to the end of the response stands for that to the first token, and the other does not count."""
    slo_buffer_factor: Annotated[Positive, Tunable(0.5, 2)] = 1.0
    """Factor of targets for further tokens; below 1 to keep a reserve."""
    predict_in_produce: bool = True
    """Publish predictions; with false, only training entries are collected."""
    endpoint_role_label: str = ""
    """Endpoint label whose value is sent as `pod_type`; further tokens do not count where it is `prefill`."""
    context_ttl: int | str = msgspec.field(default="5m", name="contextTTL")
    """Time after which a request without an end no longer counts as running: a duration, or nanoseconds."""
    prediction_timeout: int | str = "50ms"
    """Longest time that a request waits for the prediction server, before rates are used: a duration, or
    nanoseconds."""
    prefix_match_info_producer_name: str = ""
    """Name of the producer instance whose matches are read; empty for the default one."""
    in_flight_load_producer_name: str = ""
    """Accepted for compatibility: tokens in flight have one source."""
    use_encoder_cache_features: bool = False
    """Send prediction servers how many media a request has, and how many of them an endpoint has encoded before; with
    false, both are 0. Predictions from rates do not use it."""
    encoder_cache_match_info_producer_name: str = ""
    """Name of the `mm-embeddings-cache-producer` that is read then; empty for the default one."""
    sampling_mean: Natural = 1000
    """Without effect, as in llm-d."""
    max_decode_token_samples_for_prediction: Natural = 0
    """Without effect, as in llm-d."""

    def __post_init__(self) -> None:
        for name, value in (("contextTTL", self.context_ttl), ("predictionTimeout", self.prediction_timeout)):
            try:
                limit = duration_seconds(value)
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from error
            if not 0.0 < limit < inf:
                raise ValueError(f"{name} is {value!r}; it must be above 0")


def duration_seconds(value: int | str) -> float:
    """Return a duration, given as text or in nanoseconds; raises ValueError."""
    return value / _NS_PER_S if isinstance(value, int) else parse_duration(value)
