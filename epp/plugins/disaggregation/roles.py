# SPDX-License-Identifier: Apache-2.0
"""Filters by the role of an endpoint, and deciders whether to disaggregate a request."""

from collections.abc import Sequence
from typing import Annotated

from epp.framework import PREFIX_MATCH, PROMPT_TOKENS, Decider, Natural, Parameters, ProfileResult, Request, Tunable
from epp.framework.flow_control import DECODE_ROLES, ENCODE_ROLES, PREFILL_ROLES, ROLE_LABEL
from epp.plugins.filters.labels import LabelValueFilter


class EncodeFilter(LabelValueFilter):
    """Keeps an endpoint if its label `llm-d.ai/role` is encode, encode-prefill or encode-prefill-decode."""

    plugin_type = "encode-filter"
    label = ROLE_LABEL
    values = ENCODE_ROLES


class PrefillFilter(LabelValueFilter):
    """Keeps an endpoint if its label `llm-d.ai/role` includes prefill.

    The values are prefill, encode-prefill, prefill-decode, encode-prefill-decode and both.
    """

    plugin_type = "prefill-filter"
    label = ROLE_LABEL
    values = PREFILL_ROLES


class DecodeFilter(LabelValueFilter):
    """Keeps an endpoint if its label `llm-d.ai/role` includes decode, or if it has no such label.

    The values are decode, prefill-decode, encode-prefill-decode and both.
    """

    plugin_type = "decode-filter"
    label = ROLE_LABEL
    values = DECODE_ROLES
    takes_unlabelled = True


class AlwaysDisaggMultimodalDecider(Decider):
    """Approves requests whose prompt has an image, an audio clip or a video."""

    plugin_type = "always-disagg-multimodal-decider"

    def decide(self, request: Request, decode: ProfileResult | None) -> bool:
        return request.body.media_items > 0


class AlwaysDisaggPDDecider(Decider):
    """Approves every request: each gets a prefill leg, if a suitable endpoint exists."""

    plugin_type = "always-disagg-pd-decider"

    def decide(self, request: Request, decode: ProfileResult | None) -> bool:
        return True


class PrefixBasedPDParameters(Parameters, frozen=True):
    """Least work of a prefill leg."""

    non_cached_tokens: Annotated[Natural, Tunable(0, 8_192)] = 0
    """Least uncached prompt tokens at the decode endpoint for a prefill leg; 0 for no prefill legs."""
    prompt_tokens: Natural = 0
    """Least prompt tokens for a prefill leg, cached or not; 0 for no limit."""
    prefix_match_info_producer_name: str = ""
    """Name of the producer instance whose matches are read; empty for the default one."""


class PrefixBasedPDDecider(Decider[PrefixBasedPDParameters]):
    """Approves requests with `prompt >= promptTokens` and `prompt - matched >= nonCachedTokens`, in tokens.

    `matched` are the tokens that the first target of the decode leg is expected to hold; 0 before the decode leg, and
    without a producer of matches.
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
