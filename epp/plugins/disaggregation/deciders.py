# SPDX-License-Identifier: Apache-2.0
"""Deciders: whether a stage of a request gets a leg of its own."""

from collections.abc import Sequence

from epp.framework import PREFIX_MATCH, PROMPT_TOKENS, Decider, Natural, Parameters, ProfileResult, Request


class AlwaysDisaggMultimodalDecider(Decider):
    """Says yes if the prompt holds an image, an audio clip or a video; no if it is text only."""

    plugin_type = "always-disagg-multimodal-decider"

    def decide(self, request: Request, decode: ProfileResult | None) -> bool:  # noqa: ARG002
        return request.body.media_items > 0


class AlwaysDisaggPDDecider(Decider):
    """Always says yes: every request gets a prefill leg, if an endpoint is found for it."""

    plugin_type = "always-disagg-pd-decider"

    def decide(self, request: Request, decode: ProfileResult | None) -> bool:  # noqa: ARG002
        return True


class PrefixBasedPDParameters(Parameters, frozen=True):
    """Least work of a prefill leg."""

    non_cached_tokens: Natural = 0
    """Prompt tokens not cached by the decode endpoint from which a request gets a prefill leg; 0 for never."""
    prompt_tokens: Natural = 0
    """Prompts of fewer tokens get no prefill leg, cached or not; 0 for no limit."""
    prefix_match_info_producer_name: str = ""
    """Name of the producer instance whose matches are read; empty for the default one."""


class PrefixBasedPDDecider(Decider[PrefixBasedPDParameters]):
    """Says yes if `prompt >= promptTokens` and `prompt - matched >= nonCachedTokens`, both in tokens.

    `matched` are the tokens that the first target of the decode leg is expected to hold: 0 before the decode leg has
    run, and without a producer of matches.
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
        return prompt - match.tokens_at(decode.slot) >= wanted
