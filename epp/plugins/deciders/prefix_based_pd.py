"""Wants a prefill leg where the decode endpoint would have much of the prompt to compute itself."""

from collections.abc import Sequence

from epp.framework import Decider, Parameters, ProfileResult, Request
from epp.framework.limits import Natural
from epp.framework.request import PREFIX_MATCH, PROMPT_TOKENS


class PrefixBasedPDParameters(Parameters, frozen=True):
    """How much work a prefill leg has to save."""

    non_cached_tokens: Natural = 0
    """Prompt tokens that the decode endpoint does not hold, from which on a prefill leg is wanted; 0 for never."""
    prompt_tokens: Natural = 0
    """Prompts of fewer tokens than this get no prefill leg, cached or not; 0 for no such limit."""
    prefix_match_info_producer_name: str = ""
    """Name of the producer instance whose matches are read; empty for the default one."""


class PrefixBasedPDDecider(Decider[PrefixBasedPDParameters]):
    """Says yes where `prompt >= promptTokens` and `prompt - matched >= nonCachedTokens`, both in tokens.

    `matched` is what the endpoint that the decode leg picked first is believed to hold. Where no decode endpoint is
    chosen yet, or nobody looked for matches, nothing counts as held.
    """

    plugin_type = "prefix-based-pd-decider"
    may_read = (PROMPT_TOKENS,)

    def setup(self) -> None:
        self._key = PREFIX_MATCH.produced_by(self.parameters.prefix_match_info_producer_name)
        self.reads = (self._key,)

    @property
    def warnings(self) -> Sequence[str]:
        return () if self.parameters.non_cached_tokens else ("nonCachedTokens is 0: no request gets a prefill leg",)

    def decide(self, request: Request, decode: ProfileResult | None) -> bool:
        prompt, wanted = request.prompt_tokens, self.parameters.non_cached_tokens
        if wanted == 0 or prompt < max(wanted, self.parameters.prompt_tokens):
            return False
        match = request.get(self._key)
        if match is None or decode is None:
            return True
        matched = int(match.matched_blocks[decode.slot]) * match.block_tokens
        return prompt - matched >= wanted
