# SPDX-License-Identifier: Apache-2.0
"""Parameters of a disaggregated request's stages, in the current and the former spelling."""

from collections.abc import Mapping
from itertools import combinations
from typing import Literal

import msgspec

from epp.framework import Name, Parameters


class StageProfiles(Parameters, frozen=True):
    """Names of the profiles, by stage."""

    decode: Name = "decode"
    """Profile that picks the endpoint for the answer; its targets are what the gateway gets."""
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
    """Decider for the prefill leg; empty for no prefill leg."""
    encode: str = ""
    """Decider for the encode leg; empty for no encode leg."""


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
        """Refuse two spellings at once, a decider that is never asked, and a profile for two stages."""
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
        """Return a warning for each former spelling in use."""
        found = [f"{former} is deprecated: use {now}" for former, now in self._former().items()]
        if self.primary_port:
            found.append("primaryPort is deprecated and not used: remove it")
        return found

    def _former(self) -> dict[str, str]:
        """Return the former spellings in use, each with the current one."""
        spelled = (
            ("decodeProfile", "profiles.decode", self.decode_profile),
            ("prefillProfile", "profiles.prefill", self.prefill_profile),
            ("encodeProfile", "profiles.encode", self.encode_profile),
            ("deciderPluginName", "deciders.prefill", self.decider_plugin_name),
            ("prefillDeciderPluginName", "deciders.prefill", self.prefill_decider_plugin_name),
            ("encodeDeciderPluginName", "deciders.encode", self.encode_decider_plugin_name),
        )
        return {former: now for former, now, value in spelled if value}
