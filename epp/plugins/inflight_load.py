# SPDX-License-Identifier: Apache-2.0
"""Count the tokens of requests in flight."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from epp.framework import (
    IN_FLIGHT,
    IN_FLIGHT_COST,
    IN_FLIGHT_TOKENS,
    PREFIX_MATCH,
    PROMPT_TOKENS,
    Natural,
    NonNegative,
    Parameters,
    PreRequest,
    Request,
    SchedulingResult,
    Snapshot,
)
from epp.framework.plugin_status import endpoint_state


class InflightLoadParameters(Parameters, frozen=True):
    """Estimate of the output, and the source of prefix matches."""

    add_estimated_output_tokens: bool = False
    """Add an estimate of the output: `outputRatio` times the prompt, within the two limits."""
    output_ratio: NonNegative = 1.5
    """Output tokens expected for each prompt token."""
    max_estimated_output_tokens: Natural | None = None
    """Upper limit of the estimate; the request's own output limit always applies."""
    prefix_match_info_producer_name: str = ""
    """Name of the producer instance whose matches are read, if configured; empty for the default one."""
    sync_cross_replica_state: bool = True
    """Accepted for compatibility: each picker counts its own requests."""
    output_estimator: Literal["static", "sketch"] = "static"
    """Accepted for compatibility: the estimate is `outputRatio` times the prompt with both; `sketch` is a model of
    output lengths in llm-d-router."""
    sketch: Mapping[str, Any] | None = None
    """Accepted for compatibility, without effect."""


class InflightLoadProducer(PreRequest[InflightLoadParameters]):
    """Publishes `prompt_tokens - matched_tokens`, plus the estimated output if configured.

    The cost is published for the target of each profile that ran; without a prefix match, the whole prompt counts. It
    is added to the target's tokens in flight until the first token. The estimated output counts for the primary target
    only. All instances share one output.
    """

    plugin_type = "inflight-load-producer"
    writes = (IN_FLIGHT_COST, IN_FLIGHT_TOKENS)

    def setup(self) -> None:
        self._match_key = PREFIX_MATCH.produced_by(self.parameters.prefix_match_info_producer_name)
        self.may_read = (self._match_key, PROMPT_TOKENS)

    @property
    def warnings(self) -> Sequence[str]:
        if self.parameters.output_estimator == "static":
            return ()
        return ["outputEstimator: sketch is not supported: outputs are estimated as outputRatio times the prompt"]

    def pre_request(self, request: Request, result: SchedulingResult) -> None:
        match = request.get(self._match_key)
        costs: dict[str, int] = {}
        for profile, leg in result.profiles.items():
            if leg is not None:
                cached = 0 if match is None else match.tokens_at(leg.slot)
                costs[profile] = max(0, request.prompt_tokens - cached)
        costs[result.primary.profile] += self._estimated_output(request)
        request.put(IN_FLIGHT_COST, costs)

    def dump_state(self, snapshot: Snapshot) -> object | None:
        return endpoint_state(
            snapshot, {"requests": snapshot.column(IN_FLIGHT), "tokens": snapshot.column(IN_FLIGHT_TOKENS)}
        )

    def _estimated_output(self, request: Request) -> int:
        if not self.parameters.add_estimated_output_tokens:
            return 0
        estimate = int(self.parameters.output_ratio * request.prompt_tokens)
        limits = (self.parameters.max_estimated_output_tokens, request.body.max_output_tokens)
        return max(0, min([estimate, *(limit for limit in limits if limit is not None)]))
