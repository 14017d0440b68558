# SPDX-License-Identifier: Apache-2.0
"""Says how full endpoints are in seconds of work, so that a queue of a slow accelerator counts for more."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from epp.framework import (
    ACCELERATOR,
    IN_FLIGHT,
    IN_FLIGHT_TOKENS,
    LOAD_INPUTS,
    METRICS_AT,
    Candidates,
    Floats,
    Parameters,
    Plugin,
    Positive,
)
from epp.framework.flow_control import SaturationDetector
from epp.plugins.endpoint_rates.producer import EndpointRatesProducer

_PRODUCER = "endpointRatesProducerName"


class WorkSecondsDetectorParameters(Parameters, frozen=True):
    """A limit in seconds, and where rates are from."""

    max_seconds: Positive = 1.0
    """Expected seconds of work in front of a new request at which an endpoint is full."""
    endpoint_rates_producer_name: str = "endpoint-rates-producer"
    """Name of the plugin that knows the rates, which has to be among the plugins."""


class WorkSecondsDetector(SaturationDetector[WorkSecondsDetectorParameters]):
    """An endpoint is as full as `(queue + wait) / maxSeconds`: the seconds of work in front of a new request there.

    These are the terms of `work-seconds-scorer` that do not depend on the request, by the rates of
    `endpoint-rates-producer`: `wait = uncached prompt tokens in flight there / prefill rate`, and `queue`, the time for
    a place in the batch, `requests ahead * mean output tokens * ITL / running`, which is 0 for an engine with free
    places. Rates are those of the producer's `baseModel`, or else of the model that was asked for last.
    """

    plugin_type = "work-seconds-detector"
    reads = (IN_FLIGHT_TOKENS, IN_FLIGHT)
    may_read = (*LOAD_INPUTS, ACCELERATOR, METRICS_AT)  # those of the rates

    @property
    def references(self) -> Mapping[str, str]:
        return {_PRODUCER: self.parameters.endpoint_rates_producer_name}

    def connect(self, plugins: Mapping[str, Plugin[Any]]) -> None:
        producer = plugins[_PRODUCER]
        if not isinstance(producer, EndpointRatesProducer):
            raise ValueError(  # noqa: TRY004  what `connect` raises
                f"{_PRODUCER}: plugin {producer.name!r} (type {producer.plugin_type}) knows no rates; name an "
                "endpoint-rates-producer"
            )
        self._producer = producer

    def fullness(self, candidates: Candidates) -> Floats:
        rates = self._producer.pool_rates(candidates.snapshot)
        return rates.ttft_seconds(candidates, np.zeros(len(candidates))) / self.parameters.max_seconds
