# SPDX-License-Identifier: Apache-2.0
"""Saturation detector in seconds of work: the queue of a slow accelerator counts more."""

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
    """A limit in seconds, and the source of rates."""

    max_seconds: Positive = 1.0
    """Expected seconds of work in front of a new request at which an endpoint is full."""
    endpoint_rates_producer_name: str = "endpoint-rates-producer"
    """Name of a declared endpoint-rates-producer."""


class WorkSecondsDetector(SaturationDetector[WorkSecondsDetectorParameters]):
    """The fullness of an endpoint is `(queue + wait) / maxSeconds`: the seconds of work ahead of a new request.

    These are the terms of `work-seconds-scorer` that do not depend on the request, with the rates of
    `endpoint-rates-producer`. `wait` is `uncached prompt tokens in flight there / prefill rate`. `queue` is the time to
    get a place in the batch, `requests ahead * mean output tokens * ITL / running`, or 0 with free places. Rates are
    those of the producer's `baseModel`, else of the last requested model.
    """

    plugin_type = "work-seconds-detector"
    reads = (IN_FLIGHT_TOKENS, IN_FLIGHT)
    may_read = (*LOAD_INPUTS, ACCELERATOR, METRICS_AT)  # inputs of the rates

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
