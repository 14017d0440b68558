"""Says how many tokens the chosen endpoints have to compute for a request."""

from epp.framework import (
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
)


class InflightLoadParameters(Parameters, frozen=True):
    """Whether output counts, and whose prefix matches are believed."""

    add_estimated_output_tokens: bool = False
    """Count an estimate of the output too: `outputRatio` times the prompt, within the two limits."""
    output_ratio: NonNegative = 1.5
    """Output tokens expected for each prompt token."""
    max_estimated_output_tokens: Natural | None = None
    """Upper limit of the estimate; the request's own limit on its output holds in any case."""
    prefix_match_info_producer_name: str = ""
    """Name of the producer instance whose matches are read, if it is there; empty for the default one."""
    sync_cross_replica_state: bool = True
    """Accepted for compatibility: each picker counts what it sent."""


class InflightLoadProducer(PreRequest[InflightLoadParameters]):
    """`prompt_tokens - matched_tokens`, plus the estimated output where asked for.

    For the target of each profile that ran: the match is that of the target's slot; without a match record the whole
    prompt counts. The cost is what the ledger credits to the target until the first token, so it is published under
    the one key, whatever this instance is called. Output is expected of the primary target alone.
    """

    plugin_type = "inflight-load-producer"
    writes = (IN_FLIGHT_COST, IN_FLIGHT_TOKENS)

    def setup(self) -> None:
        self._match_key = PREFIX_MATCH.produced_by(self.parameters.prefix_match_info_producer_name)
        self.may_read = (self._match_key, PROMPT_TOKENS)

    def pre_request(self, request: Request, result: SchedulingResult) -> None:
        match = request.get(self._match_key)
        costs: dict[str, int] = {}
        for profile, leg in result.profiles.items():
            if leg is not None:
                cached = 0 if match is None else int(match.matched_blocks[leg.slot]) * match.block_tokens
                costs[profile] = max(0, request.prompt_tokens - cached)
        costs[result.primary.profile] += self._estimated_output(request)
        request.put(IN_FLIGHT_COST, costs)

    def _estimated_output(self, request: Request) -> int:
        if not self.parameters.add_estimated_output_tokens:
            return 0
        estimate = int(self.parameters.output_ratio * request.prompt_tokens)
        limits = (self.parameters.max_estimated_output_tokens, request.body.max_output_tokens)
        return max(0, min([estimate, *(limit for limit in limits if limit is not None)]))
