"""Wants a prefill leg for every request."""

from epp.framework import Decider, ProfileResult, Request


class AlwaysDisaggPDDecider(Decider):
    """Always says yes: every prompt is prefilled elsewhere, where there is an endpoint to do it."""

    plugin_type = "always-disagg-pd-decider"

    def decide(self, request: Request, decode: ProfileResult | None) -> bool:  # noqa: ARG002
        return True
