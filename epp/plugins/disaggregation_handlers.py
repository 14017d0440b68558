# SPDX-License-Identifier: Apache-2.0
"""Profile handlers that run encode, prefill and decode profiles in sequence, and the headers of these legs."""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta
from msgspec.structs import asdict, replace

from epp.framework import (
    Aggregator,
    Decider,
    Destination,
    Name,
    Parameters,
    Plugin,
    PreRequest,
    ProfilePicker,
    ProfileResult,
    Request,
    SchedulingResult,
    Stability,
)
from epp.framework.headers import DATA_PARALLEL, ENCODERS, PREFILLER
from epp.framework.plugin import P
from epp.framework.plugin_status import Legacy, PluginMetric, Sample
from epp.plugins.profile_handlers import missing, primary_addresses, rank_header

_MOST_MODELS = 100
"""Maximum models with their own metric label; clients can send any number of names."""
_MOST_CHARACTERS = 128
_DECISIONS = {
    (False, False): "decode-only",
    (True, False): "prefill-decode",
    (False, True): "encode-decode",
    (True, True): "encode-prefill-decode",
}
"""Metric labels by the presence of a prefill leg and of an encode leg."""


def _decisions(name: str, text: str) -> PluginMetric:
    labels = ("model_name", "decision_type")
    return PluginMetric(
        name, text, labels, is_counter=True, legacy=Legacy(f"llm_d_inference_scheduler_{name}_total", labels)
    )


class StageProfiles(Parameters, frozen=True):
    """Names of the profiles, by stage."""

    decode: Name = "decode"
    """Profile that picks the endpoint for the answer; the gateway gets its targets."""
    prefill: Name = "prefill"
    """Profile that picks the endpoint for the prompt."""
    encode: Name = "encode"
    """Profile that picks the endpoint for images, audio clips and videos."""

    def __post_init__(self) -> None:
        for one, other in combinations(("decode", "prefill", "encode"), 2):
            profile = getattr(self, one)
            if profile == getattr(self, other):
                raise ValueError(f"the {one} and the {other} stage both run profile {profile!r}; give each its own")


class LegHandler(ProfilePicker[P], Aggregator[P], PreRequest[P]):
    """Base class: a leg runs always, or if its decider approves; a metric counts the combinations."""

    decided: ClassVar[PluginMetric]
    """Metric of the decisions; it must also be in `metrics`."""

    def _set_legs(
        self, profiles: StageProfiles, deciders: Mapping[str, tuple[str, str]], *, prefill_first: bool = False
    ) -> None:
        """Set the profiles of the legs; `deciders` maps stages to the parameter and the name of their decider."""
        self._profiles = profiles
        order = ("prefill", "encode", "decode") if prefill_first else ("decode", "encode", "prefill")
        self._order = [profile for stage in order if (profile := getattr(profiles, stage))]
        self._always = {profiles.decode, profiles.prefill} if prefill_first else {profiles.decode}
        self._named_deciders = {getattr(profiles, stage): named for stage, named in deciders.items()}
        self._deciders: dict[str, Decider[Any]] = {}
        self._decided: Counter[tuple[str, str]] = Counter()
        self._models: set[str] = set()

    @property
    def samples(self) -> Sequence[Sample]:
        return [Sample(self.decided, count, labels) for labels, count in list(self._decided.items())]

    def pre_request(self, request: Request, result: SchedulingResult) -> None:
        legs = result.profiles
        prefill, encode = legs.get(self._profiles.prefill), legs.get(self._profiles.encode)
        decision = _DECISIONS[prefill is not None, encode is not None]
        model = request.model[:_MOST_CHARACTERS] or "unknown"
        if model not in self._models and len(self._models) >= _MOST_MODELS:
            model = "other"
        self._models.add(model)
        self._decided[model, decision] += 1

    @property
    def references(self) -> Mapping[str, str]:
        return dict(self._named_deciders.values())

    def connect(self, plugins: Mapping[str, Plugin[Any]]) -> None:
        for profile, (parameter, _) in self._named_deciders.items():
            plugin = plugins[parameter]
            if not isinstance(plugin, Decider):
                raise ValueError(  # noqa: TRY004  the error type of `connect`
                    f"{parameter}: plugin {plugin.name!r} (type {plugin.plugin_type}) is not a Decider; name a Decider"
                )
            self._deciders[profile] = plugin

    def check_profiles(self, profiles: Sequence[str]) -> Sequence[str]:
        if self._profiles.decode not in profiles:
            raise ValueError(f"the decode stage: {missing(self._profiles.decode, profiles)}")
        wanted = [profile for profile in self._order if profile in self._always or profile in self._deciders]
        return [
            *(f"profile {one!r} does not exist: its stage is skipped" for one in wanted if one not in profiles),
            *(f"profile {one!r} is never run: no stage uses it" for one in profiles if one not in wanted),
        ]

    def pick_profiles(
        self, request: Request, profiles: Sequence[str], results: Mapping[str, ProfileResult | None]
    ) -> Sequence[str]:
        """Return the next leg; empty at the end, or after a failed decode leg.

        Legs without a profile are skipped, except decode. A decider is called at most once for each request.
        """
        decode = results.get(self._profiles.decode)
        if decode is None and self._profiles.decode in results:
            return ()
        next_index = max((self._order.index(profile) + 1 for profile in results), default=0)
        for profile in self._order[next_index:]:
            if profile not in profiles and profile != self._profiles.decode:
                continue
            decider = self._deciders.get(profile)
            if profile in self._always or (decider is not None and decider.decide(request, decode)):
                return (profile,)
        return ()

    def aggregate(self, request: Request, results: Mapping[str, ProfileResult | None]) -> Destination | None:
        """Return the decode leg with the headers of the others; None without a decode leg."""
        decode = results.get(self._profiles.decode)
        if decode is None:
            return None
        prefill, encode = results.get(self._profiles.prefill), results.get(self._profiles.encode)
        return Destination(decode, leg_headers(decode, prefill, encode))


def leg_headers(
    decode: ProfileResult, prefill: ProfileResult | None = None, encode: ProfileResult | None = None
) -> dict[str, str]:
    """Return the headers with the addresses of the prefill and encode targets, for the legs that ran.

    The prefill header has only the first target, because the protocol has no fallbacks there. The encode header is a
    list, because encoders share the media items. Neither contains the decode target, which would call itself; a header
    without addresses is omitted.
    """
    own = decode.targets[0].hostport
    headers: dict[str, str] = {}
    if prefill is not None and (prefiller := prefill.targets[0].hostport) != own:
        headers[PREFILLER] = prefiller
    if encode is not None:
        encoders = [target.hostport for target in encode.targets if target.hostport != own]
        if encoders:
            headers[ENCODERS] = ",".join(encoders)
    return headers


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
        if nested and (deprecated := [old for *_, old, _ in self.deprecated_values()]):
            raise ValueError(
                f"profiles or deciders are given together with {', '.join(deprecated)}, which they replace: keep one"
            )
        if self.stage_order == "prefill-first" and "prefill" in (deciders := self.deciders_by_stage()):
            parameter, decider = deciders["prefill"]
            raise ValueError(
                f"{parameter} is {decider!r}, but with stageOrder prefill-first the prefill leg runs first, without a "
                f"decider: remove it, or use decode-first"
            )
        self.profiles_by_stage()

    def profiles_by_stage(self) -> StageProfiles:
        """Return the names of the profiles, from current and deprecated parameters."""
        deprecated = {stage: name for section, stage, _, name in self.deprecated_values() if section == "profiles"}
        return replace(self.profiles, **deprecated)

    def deciders_by_stage(self) -> Mapping[str, tuple[str, str]]:
        """Return, for each stage with a decider, the parameter that names it and the name."""
        found = {stage: (f"deciders.{stage}", name) for stage, name in asdict(self.deciders).items() if name}
        deprecated = {
            stage: (old, name) for section, stage, old, name in self.deprecated_values() if section == "deciders"
        }
        return found | deprecated

    def deprecated_values(self) -> list[tuple[str, str, str, str]]:
        """Return the section, stage, name and value of each deprecated parameter that is set."""
        values = [
            ("profiles", "decode", "decodeProfile", self.decode_profile),
            ("profiles", "prefill", "prefillProfile", self.prefill_profile),
            ("profiles", "encode", "encodeProfile", self.encode_profile),
            ("deciders", "prefill", "deciderPluginName", self.decider_plugin_name),
            ("deciders", "prefill", "prefillDeciderPluginName", self.prefill_decider_plugin_name),
            ("deciders", "encode", "encodeDeciderPluginName", self.encode_decider_plugin_name),
        ]
        return [each for each in values if each[3]]


class DisaggProfileHandler(LegHandler[DisaggParameters]):
    """Runs the legs of a request in sequence; the targets of the decode leg become the destination.

    With `decode-first`, the decode profile runs, then the encode profile if `deciders.encode` approves, then the
    prefill profile if `deciders.prefill` approves. With `prefill-first`, the prefill profile runs, then the encode
    profile if its decider approves, then the decode profile. Deciders and later legs get the endpoint of the first leg,
    so that topology plugins can keep the legs close to each other.

    A stage without a decider has no leg, except decode, and prefill with `prefill-first`. A stage without a profile has
    no leg either. A prefill or encode leg without a suitable endpoint is left out; a decode leg without one fails the
    request. The decode endpoint gets the headers `x-prefiller-host-port` and `x-encoder-hosts-ports`, which never
    contain its own address.
    """

    plugin_type = "disagg-profile-handler"
    decided = _decisions("disagg_decision", "Routed requests, by their legs.")
    metrics = (decided,)
    sets_headers = (PREFILLER, ENCODERS)

    def setup(self) -> None:
        given = self.parameters
        self._set_legs(
            given.profiles_by_stage(), given.deciders_by_stage(), prefill_first=given.stage_order == "prefill-first"
        )

    @property
    def warnings(self) -> Sequence[str]:
        deprecated = self.parameters.deprecated_values()
        found = [f"{old} is deprecated: use {section}.{stage}" for section, stage, old, _ in deprecated]
        return [*found, "primaryPort is deprecated and not used: remove it"] if self.parameters.primary_port else found


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
        self.profiles_by_stage()

    def profiles_by_stage(self) -> StageProfiles:
        return StageProfiles(decode=self.decode_profile, prefill=self.prefill_profile, encode="")


class PDProfileHandler(LegHandler[PDParameters]):
    """Runs a decode leg, then a prefill leg if the decider approves.

    Deprecated: use `disagg-profile-handler` with the order `decode-first` and no encode stage. With a `primaryPort` the
    gateway gets `ip:primaryPort` of the decode targets, and `x-data-parallel-host-port` holds the rank's `ip:port`.
    """

    plugin_type = "pd-profile-handler"
    decided = _decisions("pd_decision", "Routed requests, with and without a prefill leg.")
    metrics = (decided,)
    stability = Stability.DEPRECATED
    sets_headers = (PREFILLER, DATA_PARALLEL)

    def setup(self) -> None:
        decider = ("deciderPluginName", self.parameters.decider_plugin_name)
        self._set_legs(self.parameters.profiles_by_stage(), {"prefill": decider})

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
