"""Wants an encode leg for every request that brings media."""

from epp.framework import Decider, ProfileResult, Request


class AlwaysDisaggMultimodalDecider(Decider):
    """Says yes where the prompt holds an image, an audio clip or a video, and no where it is text alone."""

    plugin_type = "always-disagg-multimodal-decider"

    def decide(self, request: Request, decode: ProfileResult | None) -> bool:  # noqa: ARG002
        return request.body.media_items > 0
