# SPDX-License-Identifier: Apache-2.0
"""The profile handlers of disaggregated requests."""

from collections.abc import Mapping, Sequence
from typing import Annotated

from msgspec import Meta
from msgspec.structs import replace

from epp.framework import Destination, Name, Parameters, ProfileResult, Request, Stability
from epp.framework.headers import DATA_PARALLEL, ENCODERS, PREFILLER
from epp.plugins.disaggregation.legs import LegHandler, decisions
from epp.plugins.disaggregation.parameters import DisaggParameters, check_distinct
from epp.plugins.profile_handlers import primary_addresses, rank_header


class DisaggProfileHandler(LegHandler[DisaggParameters]):
    """Runs the legs of a request one after the other; the targets of the decode leg become the destination.

    With `decode-first` the decode profile runs, then the encode profile if `deciders.encode` says so, then the
    prefill profile if `deciders.prefill` says so, knowing the decode endpoint. With `prefill-first` the prefill
    profile runs, then the encode profile if its decider says so, then the decode profile. Later legs know the endpoint
    of the first, so that a topology plugin may keep them near each other.

    A stage without a decider has no leg, except decode, and prefill with `prefill-first`; nor has a stage whose
    profile does not exist. A prefill or encode leg that finds no endpoint is left out; a decode leg that finds none
    fails the request. The decode endpoint gets `x-prefiller-host-port` and `x-encoder-hosts-ports`, which never
    contain its own address.
    """

    plugin_type = "disagg-profile-handler"
    decided = decisions("disagg_decision", "Requests routed, by the legs that they have.")
    metrics = (decided,)
    sets_headers = (PREFILLER, ENCODERS)

    def setup(self) -> None:
        profiles = self.parameters.profiles_by_stage()
        by_stage = {"prefill": profiles.prefill, "encode": profiles.encode}
        self.arrange(
            decode=profiles.decode,
            prefill=profiles.prefill,
            encode=profiles.encode,
            prefill_first=self.parameters.stage_order == "prefill-first",
            deciders={by_stage[stage]: named for stage, named in self.parameters.deciders_by_stage().items()},
        )

    @property
    def warnings(self) -> Sequence[str]:
        return self.parameters.deprecations()


class PDParameters(Parameters, frozen=True):
    """The two profiles and the decider."""

    decode_profile: Name = "decode"
    """Profile that picks the endpoint for the answer."""
    prefill_profile: Name = "prefill"
    """Profile that picks the endpoint for the prompt."""
    decider_plugin_name: Name = "prefix-based-pd-decider"
    """Name of the decider plugin for the prefill leg; it has to be declared."""
    primary_port: Annotated[int, Meta(ge=0, le=65535)] = 0
    """Port given to the gateway in place of the port of the rank picked; 0 for that one itself."""
    prefix_plugin_type: str = ""
    """Accepted and not used."""
    prefix_plugin_name: str = ""
    """Accepted and not used."""
    prefix_match_info_producer_name: str = ""
    """Accepted and not used: the decider has a parameter of this name."""

    def __post_init__(self) -> None:
        """Refuse one profile for both stages."""
        check_distinct(decode=self.decode_profile, prefill=self.prefill_profile)


class PDProfileHandler(LegHandler[PDParameters]):
    """Runs a decode leg, then a prefill leg if the decider says so.

    Deprecated: use `disagg-profile-handler` with the order `decode-first` and no encode stage. With a `primaryPort` the
    gateway gets `ip:primaryPort` of the decode targets, and `x-data-parallel-host-port` holds the rank's `ip:port`.
    """

    plugin_type = "pd-profile-handler"
    decided = decisions("pd_decision", "Requests routed, by whether they have a prefill leg.")
    metrics = (decided,)
    stability = Stability.DEPRECATED
    sets_headers = (PREFILLER, DATA_PARALLEL)

    def setup(self) -> None:
        given = self.parameters
        self.arrange(
            decode=given.decode_profile,
            prefill=given.prefill_profile,
            encode=None,
            prefill_first=False,
            deciders={given.prefill_profile: ("deciderPluginName", given.decider_plugin_name)},
        )

    @property
    def warnings(self) -> Sequence[str]:
        unused = (
            ("prefixPluginType", self.parameters.prefix_plugin_type),
            ("prefixPluginName", self.parameters.prefix_plugin_name),
            ("prefixMatchInfoProducerName", self.parameters.prefix_match_info_producer_name),
        )
        return [f"{parameter} is not used: remove it" for parameter, value in unused if value]

    def aggregate(self, request: Request, results: Mapping[str, ProfileResult | None]) -> Destination | None:
        destination = super().aggregate(request, results)
        port = self.parameters.primary_port
        if destination is None or not port:
            return destination
        decode = destination.primary
        return replace(
            destination,
            headers={**destination.headers, **rank_header(decode)},
            addresses=primary_addresses(decode, port),
        )
