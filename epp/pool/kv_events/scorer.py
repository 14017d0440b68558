# SPDX-License-Identifier: Apache-2.0
"""Producer and scorer in one plugin, for older configurations."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np

from epp.framework import (
    PREFIX_MATCH,
    PROMPT_TOKENS,
    Admitter,
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
from epp.framework.plugin_status import InputState, Sample
from epp.pool.kv_events.parameters import PrecisePrefixCacheParameters, TokenizersPool
from epp.pool.kv_events.producer import PrecisePrefixCacheProducer
from epp.pool.tokens.producer import TokenProducer
from epp.pool.tokens.source import TokenProducerParameters


class PrecisePrefixCacheScorerParameters(PrecisePrefixCacheParameters, frozen=True):
    """The parameters of precise-prefix-cache-producer, and the name of a producer."""

    prefix_match_info_producer_name: str = ""
    """Name of a precise-prefix-cache-producer that is declared before this plugin; the other parameters have no effect
    then. By default, the producer that is declared before this plugin, or else the plugin itself."""


class PrecisePrefixCacheScorer(
    PrecisePrefixCacheProducer[PrecisePrefixCacheScorerParameters],
    Admitter[PrecisePrefixCacheScorerParameters],
    Scorer[PrecisePrefixCacheScorerParameters],
):
    """`matched_blocks / total_blocks`, by the KV events of engines; 0 for all endpoints without token ids.

    Deprecated: declare a precise-prefix-cache-producer, and a prefix-cache-scorer with its name. If one producer is
    declared before this plugin, its matches are used; several producers are refused. With `tokenizersPoolConfig`, the
    tokenizer service of llm-d-kv-cache supplies token ids, as for a token-producer with `udsTokenizerConfig`.
    """

    plugin_type = "precise-prefix-cache-scorer"
    stability = Stability.DEPRECATED
    category = Category.AFFINITY
    zero_means = "holds nothing of the prompt"
    has_tokenizers = True
    metrics = (*PrecisePrefixCacheProducer.metrics, *TokenProducer.metrics)

    @classmethod
    def parameters_beside(
        cls, parameters: PrecisePrefixCacheScorerParameters, declared: Sequence[Plugin[Any]]
    ) -> PrecisePrefixCacheScorerParameters:
        """Return the parameters with the name of the producer declared before; raises ConfigurationError for two."""
        names = [each.name for each in declared if type(each) is PrecisePrefixCacheProducer]
        chosen = parameters.prefix_match_info_producer_name
        if chosen and chosen not in names:
            raise ConfigurationError(
                f"prefixMatchInfoProducerName {chosen!r} is not a precise-prefix-cache-producer declared before"
            )
        if not chosen and len(names) > 1:
            raise ConfigurationError(
                f"several producers are declared before: {', '.join(names)}",
                remedy="write one of them in prefixMatchInfoProducerName",
            )
        return msgspec.structs.replace(parameters, prefix_match_info_producer_name=chosen or next(iter(names), ""))

    def setup(self) -> None:
        super().setup()
        self._is_bound = bool(self.parameters.prefix_match_info_producer_name)
        self._tokens: TokenProducer | None = None
        pool = self.parameters.indexer_config.tokenizers_pool_config
        if pool is not None and pool.model_name and not self._is_bound:
            service = TokenProducerParameters(model_name=pool.model_name, uds_tokenizer_config=pool.uds)
            self._tokens = TokenProducer(service, name=self.name, clock=self.clock)
            self.reads_content = True
        if self._is_bound:
            self._match_key = PREFIX_MATCH.produced_by(self.parameters.prefix_match_info_producer_name)
            self.reads, self.may_read, self.writes = (self._match_key,), (), ()
        else:
            self.may_read = (*self.may_read, self._match_key)

    def score(self, request: Request, candidates: Candidates) -> Floats:
        match = request.get(self._match_key)
        return np.zeros(len(candidates)) if match is None or not match.total_blocks else match.shares(candidates)

    def tag(self, endpoint: Endpoint) -> Report:
        return Report() if self._is_bound else super().tag(endpoint)

    async def follow(self, changed: Callable[[AffectedEndpoints], None]) -> None:
        if not self._is_bound:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(super().follow(changed))
                if self._tokens is not None:
                    tasks.create_task(self._tokens.follow(changed))

    def produce(self, request: Request, candidates: Candidates) -> None:
        if not self._is_bound:
            counted = request.get(PROMPT_TOKENS)
            if self._tokens is not None and (counted is None or counted.ids is None):
                self._tokens.produce(request, candidates)
                if (counted := request.get(PROMPT_TOKENS.produced_by(self.name))) is not None:
                    request.put(PROMPT_TOKENS, counted)
            super().produce(request, candidates)

    def admit(self, request: Request, candidates: Candidates) -> Awaitable[None] | None:
        """Hold the request until its token ids arrive, then like the producer."""
        if self._is_bound:
            return None
        tokens = None if self._tokens is None else self._tokens.admit(request, candidates)
        if tokens is None:
            return super().admit(request, candidates)
        return asyncio.ensure_future(self._admitted(tokens, request, candidates))

    async def _admitted(self, tokens: Awaitable[None], request: Request, candidates: Candidates) -> None:
        await tokens
        self.produce(request, candidates)
        if (held := super().admit(request, candidates)) is not None:
            await held

    @property
    def inputs(self) -> InputState:
        """Reasons that no engine can connect, or that the tokenizer service is not called."""
        found = super().inputs
        if self._tokens is None:
            return found
        return replace(found, problems=found.problems + self._tokens.inputs.problems)

    @property
    def warnings(self) -> Sequence[str]:
        used = self.parameters.prefix_match_info_producer_name
        plain = type(self.parameters)(prefix_match_info_producer_name=used)
        pool = self.parameters.indexer_config.tokenizers_pool_config
        if not used:
            ignored = {
                "tokenizersPoolConfig has no effect without modelName": pool is not None and not pool.model_name,
                "workersCount has no effect": pool is not None and pool.workers_count != TokenizersPool().workers_count,
            }
            return [*super().warnings, *(text for text, holds in ignored.items() if holds)]
        return [f"the matches of {used!r} are used; the other parameters have no effect"] * (self.parameters != plain)

    @property
    def samples(self) -> Sequence[Sample]:
        if self._is_bound:
            return ()
        return (*super().samples, *(() if self._tokens is None else self._tokens.samples))

    def dump_state(self, snapshot: Snapshot) -> object | None:
        return None if self._is_bound else super().dump_state(snapshot)
