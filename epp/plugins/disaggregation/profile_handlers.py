# SPDX-License-Identifier: Apache-2.0
"""Profile handlers that run encode, prefill and decode profiles."""

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Annotated, Literal

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from epp.framework import Destination, Name, Parameters, ProfileResult, Request, Stability
from epp.framework.headers import DATA_PARALLEL, ENCODERS, PREFILLER
from epp.plugins.disaggregation.legs import LegHandler, decisions
from epp.plugins.profile_handlers import primary_addresses, rank_header


class StageProfiles(Parameters, frozen=True):
    """Names of the profiles, by stage."""

    decode: Name = "decode"
    """Profile that picks the endpoint for the answer; the gateway gets its targets."""
    prefill: Name = "prefill"
    """Profile that picks the endpoint for the prompt."""
    encode: Name = "encode"
    """Profile that picks the endpoint for images, audio clips and videos."""

    def __post_init__(self) -> None:
        """Refuse a profile for two stages."""
        check_distinct(decode=self.decode, prefill=self.prefill, encode=self.encode)


def check_distinct(**profiles: str) -> None:
    """Raise ValueError if two stages have the same profile."""
    for one, other in combinations(profiles, 2):
        if profiles[one] == profiles[other]:
            raise ValueError(f"the {one} and the {other} stage both run profile {profiles[one]!r}; give each its own")


class StageDeciders(Parameters, frozen=True):
    """Names of the decider plugins, by stage."""

    prefill: str = ""
    """Decider for the prefill leg; without it, there is no prefill leg."""
    encode: str = ""
    """Decider for the encode leg; without it, there is no encode leg."""


class DisaggParameters(Parameters, frozen=True):
    """Order of the stages, their profiles and their deciders."""

    stage_order: Literal["decode-first", "prefill-first"] = "decode-first"
    """`decode-first` (decode, encode, prefill) or `prefill-first` (prefill, encode, decode).

    With `prefill-first` every request gets a prefill leg if the prefill profile exists; `deciders.prefill` is refused.
    """
    profiles: StageProfiles = msgspec.field(default_factory=StageProfiles)
    """Names of the profiles, by stage."""
    deciders: StageDeciders = msgspec.field(default_factory=StageDeciders)
    """Names of the decider plugins, by stage."""
    decode_profile: str = ""
    """Deprecated: use `profiles.decode`."""
    prefill_profile: str = ""
    """Deprecated: use `profiles.prefill`."""
    encode_profile: str = ""
    """Deprecated: use `profiles.encode`."""
    prefill_decider_plugin_name: str = ""
    """Deprecated: use `deciders.prefill`."""
    encode_decider_plugin_name: str = ""
    """Deprecated: use `deciders.encode`."""
    decider_plugin_name: str = ""
    """Deprecated: use `deciders.prefill`."""
    primary_port: int = 0
    """Deprecated: accepted and not used."""

    def __post_init__(self) -> None:
        nested = self.profiles != StageProfiles() or self.deciders != StageDeciders()
        if nested and (former := self._former()):
            raise ValueError(
                f"profiles or deciders are given together with {', '.join(former)}, their former spelling: keep one"
            )
        if self.stage_order == "prefill-first" and "prefill" in (asked := self.deciders_by_stage()):
            parameter, decider = asked["prefill"]
            raise ValueError(
                f"{parameter} is {decider!r}, but with stageOrder prefill-first the prefill leg runs first and no "
                f"decider is asked: remove it, or use decode-first"
            )
        self.profiles_by_stage()

    def profiles_by_stage(self) -> StageProfiles:
        """Return the names of the profiles in either spelling."""
        profiles = self.profiles
        return StageProfiles(
            decode=self.decode_profile or profiles.decode,
            prefill=self.prefill_profile or profiles.prefill,
            encode=self.encode_profile or profiles.encode,
        )

    def deciders_by_stage(self) -> Mapping[str, tuple[str, str]]:
        """Return, for each stage with a decider, the parameter that names it and the name."""
        spelled = (
            ("prefill", "deciders.prefill", self.deciders.prefill),
            ("prefill", "deciderPluginName", self.decider_plugin_name),
            ("prefill", "prefillDeciderPluginName", self.prefill_decider_plugin_name),
            ("encode", "deciders.encode", self.deciders.encode),
            ("encode", "encodeDeciderPluginName", self.encode_decider_plugin_name),
        )
        return {stage: (parameter, decider) for stage, parameter, decider in spelled if decider}

    def deprecations(self) -> list[str]:
        """Return a warning for each deprecated spelling in use."""
        found = [f"{former} is deprecated: use {now}" for former, now in self._former().items()]
        if self.primary_port:
            found.append("primaryPort is deprecated and not used: remove it")
        return found

    def _former(self) -> dict[str, str]:
        """Return the deprecated spellings in use, with the current ones."""
        spelled = (
            ("decodeProfile", "profiles.decode", self.decode_profile),
            ("prefillProfile", "profiles.prefill", self.prefill_profile),
            ("encodeProfile", "profiles.encode", self.encode_profile),
            ("deciderPluginName", "deciders.prefill", self.decider_plugin_name),
            ("prefillDeciderPluginName", "deciders.prefill", self.prefill_decider_plugin_name),
            ("encodeDeciderPluginName", "deciders.encode", self.encode_decider_plugin_name),
        )
        return {former: now for former, now, value in spelled if value}


class DisaggProfileHandler(LegHandler[DisaggParameters]):
    """Runs the legs of a request in sequence; the targets of the decode leg become the destination.

    With `decode-first`, the decode profile runs, then the encode profile if `deciders.encode` approves, then the
    prefill profile if `deciders.prefill` approves. With `prefill-first`, the prefill profile runs, then the encode
    profile if its decider approves, then the decode profile. Deciders and later legs know the endpoint of the first
    leg, so that topology plugins can keep the legs close to each other.

    A stage without a decider has no leg, except decode, and prefill with `prefill-first`. A stage without a profile has
    no leg either. A prefill or encode leg without a suitable endpoint is left out; a decode leg without one fails the
    request. The decode endpoint gets the headers `x-prefiller-host-port` and `x-encoder-hosts-ports`, which never
    contain its own address.
    """

    plugin_type = "disagg-profile-handler"
    decided = decisions("disagg_decision", "Requests routed, by the legs that they have.")
    metrics = (decided,)
    sets_headers = (PREFILLER, ENCODERS)

    def setup(self) -> None:
        profiles = self.parameters.profiles_by_stage()
        by_stage = {"prefill": profiles.prefill, "encode": profiles.encode}
        self.set_legs(
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
    """Name of a declared decider plugin for the prefill leg."""
    primary_port: Annotated[int, Meta(ge=0, le=65535)] = 0
    """Port given to the gateway in place of the port of the picked rank; 0 for the rank's own port."""
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
    """Runs a decode leg, then a prefill leg if the decider approves.

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
        self.set_legs(
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
