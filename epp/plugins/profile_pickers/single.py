"""Runs the only profile, once, and takes its result."""

from collections.abc import Mapping, Sequence

from epp.framework import Aggregator, Destination, ProfilePicker, ProfileResult, Request
from epp.plugins.profile_pickers.profile_names import only_one


class SingleProfileHandler(ProfilePicker, Aggregator):
    """Asks for the one profile in the first round and for none after it; that profile's targets are the targets."""

    plugin_type = "single-profile-handler"

    def check_profiles(self, profiles: Sequence[str]) -> Sequence[str]:
        return only_one(self.plugin_type, profiles)

    def pick_profiles(
        self,
        request: Request,  # noqa: ARG002
        profiles: Sequence[str],
        results: Mapping[str, ProfileResult | None],
    ) -> Sequence[str]:
        return () if results else profiles[:1]

    def aggregate(self, request: Request, results: Mapping[str, ProfileResult | None]) -> Destination | None:  # noqa: ARG002
        for result in results.values():
            if result is not None:
                return Destination(result)
        return None
