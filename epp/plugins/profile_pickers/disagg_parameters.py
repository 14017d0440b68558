"""What is said of a disaggregated request's stages in a configuration, in today's spelling and the former one."""

from collections.abc import Mapping
from typing import Literal

import msgspec

from epp.framework import Parameters
from epp.plugins.profile_pickers.stages import StageProfiles


class StageDeciders(Parameters, frozen=True):
    """Names of the decider plugins, by stage."""

    prefill: str = ""
    """The decider that is asked for a prefill leg; empty for none, and then no prefill leg is run."""
    encode: str = ""
    """The decider that is asked for an encode leg; empty for none, and then no encode leg is run."""


class DisaggParameters(Parameters, frozen=True):
    """The order of the stages, their profiles and their deciders."""

    stage_order: Literal["decode-first", "prefill-first"] = "decode-first"
    """`decode-first` (decode, encode, prefill) or `prefill-first` (prefill, encode, decode).

    With `prefill-first` there is a prefill leg whenever the prefill profile exists, so `deciders.prefill` is refused.
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
        """Refuse what cannot be meant."""
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
        """Return the names of the profiles, however they are spelled."""
        profiles = self.profiles
        return StageProfiles(
            decode=self.decode_profile or profiles.decode,
            prefill=self.prefill_profile or profiles.prefill,
            encode=self.encode_profile or profiles.encode,
        )

    def deciders_by_stage(self) -> Mapping[str, tuple[str, str]]:
        """Return, for each stage that has a decider, the parameter that names it and the name."""
        spelled = (
            ("prefill", "deciders.prefill", self.deciders.prefill),
            ("prefill", "deciderPluginName", self.decider_plugin_name),
            ("prefill", "prefillDeciderPluginName", self.prefill_decider_plugin_name),
            ("encode", "deciders.encode", self.deciders.encode),
            ("encode", "encodeDeciderPluginName", self.encode_decider_plugin_name),
        )
        return {stage: (parameter, decider) for stage, parameter, decider in spelled if decider}

    def deprecations(self) -> list[str]:
        """Return a sentence for each former spelling in use."""
        found = [f"{former} is deprecated: use {now}" for former, now in self._former().items()]
        if self.primary_port:
            found.append("primaryPort is deprecated and not used: remove it")
        return found

    def _former(self) -> dict[str, str]:
        """Return the former spellings in use, each with today's."""
        spelled = (
            ("decodeProfile", "profiles.decode", self.decode_profile),
            ("prefillProfile", "profiles.prefill", self.prefill_profile),
            ("encodeProfile", "profiles.encode", self.encode_profile),
            ("deciderPluginName", "deciders.prefill", self.decider_plugin_name),
            ("prefillDeciderPluginName", "deciders.prefill", self.prefill_decider_plugin_name),
            ("encodeDeciderPluginName", "deciders.encode", self.encode_decider_plugin_name),
        )
        return {former: now for former, now, value in spelled if value}
