# SPDX-License-Identifier: Apache-2.0
"""Producer and scorer in one, as older configurations have it."""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np

from epp.framework import (
    PREFIX_MATCH,
    Candidates,
    Category,
    Endpoint,
    Floats,
    Request,
    Scorer,
    Snapshot,
    Stability,
)
from epp.framework.datalayer import AffectedEndpoints, Report
from epp.framework.errors import ConfigurationError
from epp.framework.plugin import Plugin
from epp.framework.plugin_status import Sample
from epp.pool.kv_events.parameters import PrecisePrefixCacheParameters
from epp.pool.kv_events.producer import PrecisePrefixCacheProducer


class PrecisePrefixCacheScorerParameters(PrecisePrefixCacheParameters, frozen=True):
    """The parameters of precise-prefix-cache-producer, and the name of one."""

    prefix_match_info_producer_name: str = ""
    """Name of a precise-prefix-cache-producer that is declared before; the other parameters have no effect then. By
    default, the one that is declared before, or else this plugin itself."""


class PrecisePrefixCacheScorer(
    PrecisePrefixCacheProducer[PrecisePrefixCacheScorerParameters], Scorer[PrecisePrefixCacheScorerParameters]
):
    """`matched_blocks / total_blocks`, by the KV events of engines; 0 for all without token ids.

    Deprecated: declare a precise-prefix-cache-producer, and a prefix-cache-scorer with its name. If one producer is
    declared before, its matches are used; two are refused.
    """

    plugin_type = "precise-prefix-cache-scorer"
    stability = Stability.DEPRECATED
    category = Category.AFFINITY
    zero_means = "holds nothing of the prompt"
    ignores_tokenizers = True

    @classmethod
    def parameters_beside(
        cls, parameters: PrecisePrefixCacheScorerParameters, declared: Sequence[Plugin[Any]]
    ) -> PrecisePrefixCacheScorerParameters:
        """Return the parameters with the name of the producer declared before; raises ConfigurationError for two."""
        names = [each.name for each in declared if type(each) is PrecisePrefixCacheProducer]
        chosen = parameters.prefix_match_info_producer_name
        if chosen and chosen not in names:
            raise ConfigurationError(
                f"prefixMatchInfoProducerName {chosen!r} is no precise-prefix-cache-producer declared before"
            )
        if not chosen and len(names) > 1:
            raise ConfigurationError(
                f"several producers are declared before: {', '.join(names)}",
                remedy="write one of them in prefixMatchInfoProducerName",
            )
        return msgspec.structs.replace(parameters, prefix_match_info_producer_name=chosen or next(iter(names), ""))

    def setup(self) -> None:
        """Prepare an index of its own, if there is no producer."""
        super().setup()
        self._is_bound = bool(self.parameters.prefix_match_info_producer_name)
        if self._is_bound:
            self._match_key = PREFIX_MATCH.produced_by(self.parameters.prefix_match_info_producer_name)
            self.reads, self.may_read, self.writes = (self._match_key,), (), ()
        else:
            self.may_read = (*self.may_read, self._match_key)

    def score(self, request: Request, candidates: Candidates) -> Floats:
        """Return the share of the prompt that each candidate holds."""
        match = request.get(self._match_key)
        return np.zeros(len(candidates)) if match is None or not match.total_blocks else match.shares(candidates)

    def tag(self, endpoint: Endpoint) -> Report:
        """Subscribe to the events of an endpoint that is new, if there is no producer."""
        return Report() if self._is_bound else super().tag(endpoint)

    async def follow(self, changed: Callable[[AffectedEndpoints], None]) -> None:
        """Receive events until cancelled, if there is no producer."""
        if not self._is_bound:
            await super().follow(changed)

    def produce(self, request: Request, candidates: Candidates) -> None:
        """Publish the match, if there is no producer."""
        if not self._is_bound:
            super().produce(request, candidates)

    @property
    def warnings(self) -> Sequence[str]:
        """Parameters without effect."""
        used = self.parameters.prefix_match_info_producer_name
        plain = type(self.parameters)(prefix_match_info_producer_name=used)
        if not used:
            return super().warnings
        return [f"the matches of {used!r} are used; the other parameters have no effect"] * (self.parameters != plain)

    @property
    def samples(self) -> Sequence[Sample]:
        """Metrics of its own index."""
        return () if self._is_bound else super().samples

    def dump_state(self, snapshot: Snapshot) -> object | None:
        """Return the state of its own index."""
        return None if self._is_bound else super().dump_state(snapshot)
