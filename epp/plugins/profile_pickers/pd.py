"""Splits a request into a decode and a prefill leg, as configurations of before `disagg-profile-handler` say it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

from msgspec import Meta

from epp.framework import (
    Aggregator,
    Destination,
    Parameters,
    Plugin,
    ProfilePicker,
    ProfileResult,
    Request,
    Stability,
)
from epp.framework.headers import DATA_PARALLEL, PREFILLER
from epp.framework.limits import Name
from epp.plugins.profile_pickers.disagg_legs import DisaggLegs
from epp.plugins.profile_pickers.primary_port import primary_addresses, rank_header
from epp.plugins.profile_pickers.stages import told_apart


class PDParameters(Parameters, frozen=True):
    """The two profiles, and who decides whether both run."""

    decode_profile: str = "decode"
    """The profile that chooses where the answer is generated."""
    prefill_profile: str = "prefill"
    """The profile that chooses where the prompt is computed."""
    decider_plugin_name: Name = "prefix-based-pd-decider"
    """Name of the decider plugin that is asked for a prefill leg; it has to be declared."""
    primary_port: Annotated[int, Meta(ge=0, le=65535)] = 0
    """The port that the gateway is sent to, whatever the port of the rank chosen; 0 for the chosen one itself."""
    prefix_plugin_type: str = ""
    """Accepted and not used."""
    prefix_plugin_name: str = ""
    """Accepted and not used."""
    prefix_match_info_producer_name: str = ""
    """Accepted and not used: the decider has a parameter of this name."""

    def __post_init__(self) -> None:
        """Refuse what cannot be meant."""
        told_apart(decode=self.decode_profile, prefill=self.prefill_profile)


class PDProfileHandler(ProfilePicker[PDParameters], Aggregator[PDParameters]):
    """Use `disagg-profile-handler` instead, whose `decode-first` order is what this does, without an encode stage.

    The decode profile runs, then the prefill profile if the decider says so. With a `primaryPort` the gateway is told
    `ip:primaryPort` of the decode targets, and the rank's own `ip:port` is in `x-data-parallel-host-port`.
    """

    plugin_type = "pd-profile-handler"
    stability = Stability.DEPRECATED
    sets_headers = (PREFILLER, DATA_PARALLEL)

    def setup(self) -> None:
        self._legs = DisaggLegs(decode=self.parameters.decode_profile, prefill=self.parameters.prefill_profile)

    @property
    def references(self) -> Mapping[str, str]:
        return {"deciderPluginName": self.parameters.decider_plugin_name}

    def connect(self, plugins: Mapping[str, Plugin[Any]]) -> None:
        self._legs.decide_by(self.parameters.prefill_profile, plugins["deciderPluginName"], "deciderPluginName")

    @property
    def warnings(self) -> Sequence[str]:
        unused = (
            ("prefixPluginType", self.parameters.prefix_plugin_type),
            ("prefixPluginName", self.parameters.prefix_plugin_name),
            ("prefixMatchInfoProducerName", self.parameters.prefix_match_info_producer_name),
        )
        return [f"{parameter} is not used: remove it" for parameter, value in unused if value]

    def check_profiles(self, profiles: Sequence[str]) -> Sequence[str]:
        return self._legs.check(profiles)

    def pick_profiles(
        self, request: Request, profiles: Sequence[str], results: Mapping[str, ProfileResult | None]
    ) -> Sequence[str]:
        return self._legs.next(request, profiles, results)

    def aggregate(self, request: Request, results: Mapping[str, ProfileResult | None]) -> Destination | None:  # noqa: ARG002
        verdict = self._legs.aggregate(results)
        decode = results.get(self.parameters.decode_profile)
        if verdict is None or decode is None or not self.parameters.primary_port:
            return verdict
        return replace(
            verdict,
            headers={**verdict.headers, **rank_header(decode)},
            addresses=primary_addresses(decode, self.parameters.primary_port),
        )
