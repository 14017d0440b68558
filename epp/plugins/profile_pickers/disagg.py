"""Splits a request into decode, prefill and encode legs, each on an endpoint of its own."""

from collections.abc import Mapping, Sequence
from typing import Any

from epp.framework import Aggregator, Destination, Plugin, ProfilePicker, ProfileResult, Request
from epp.framework.headers import ENCODERS, PREFILLER
from epp.plugins.profile_pickers.disagg_legs import DisaggLegs
from epp.plugins.profile_pickers.disagg_parameters import DisaggParameters


class DisaggProfileHandler(ProfilePicker[DisaggParameters], Aggregator[DisaggParameters]):
    """Runs the legs one after the other; the decode leg's targets are the targets.

    With `decode-first` the decode profile runs, then the encode profile if `deciders.encode` says so, then the
    prefill profile if `deciders.prefill` says so, knowing the decode endpoint. With `prefill-first` the prefill
    profile runs, then the encode profile if its decider says so, then the decode profile. Each leg knows the one
    chosen first, so that a topology plugin may keep them near each other.

    A stage without a decider has no leg, except decode, and prefill with `prefill-first`; neither has a stage whose
    profile does not exist. A prefill or encode leg that finds no endpoint is done without; a decode leg that finds
    none fails the request. The decode endpoint gets `x-prefiller-host-port` and `x-encoder-hosts-ports`, in which it
    is itself never named.
    """

    plugin_type = "disagg-profile-handler"
    sets_headers = (PREFILLER, ENCODERS)

    def setup(self) -> None:
        self._profiles = self.parameters.profiles_by_stage()
        self._legs = DisaggLegs(
            decode=self._profiles.decode,
            prefill=self._profiles.prefill,
            encode=self._profiles.encode,
            prefill_first=self.parameters.stage_order == "prefill-first",
        )

    @property
    def references(self) -> Mapping[str, str]:
        return dict(self.parameters.deciders_by_stage().values())

    def connect(self, plugins: Mapping[str, Plugin[Any]]) -> None:
        profiles = {"prefill": self._profiles.prefill, "encode": self._profiles.encode}
        for stage, (parameter, _) in self.parameters.deciders_by_stage().items():
            self._legs.decide_by(profiles[stage], plugins[parameter], parameter)

    @property
    def warnings(self) -> Sequence[str]:
        return self.parameters.deprecations()

    def check_profiles(self, profiles: Sequence[str]) -> Sequence[str]:
        return self._legs.check(profiles)

    def pick_profiles(
        self, request: Request, profiles: Sequence[str], results: Mapping[str, ProfileResult | None]
    ) -> Sequence[str]:
        return self._legs.next(request, profiles, results)

    def aggregate(self, request: Request, results: Mapping[str, ProfileResult | None]) -> Destination | None:  # noqa: ARG002
        return self._legs.aggregate(results)
