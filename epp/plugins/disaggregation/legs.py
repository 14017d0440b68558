# SPDX-License-Identifier: Apache-2.0
"""Base of the profile handlers that run the legs of a disaggregated request in sequence, and their headers."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from epp.framework import (
    Aggregator,
    Decider,
    Destination,
    Plugin,
    PreRequest,
    ProfilePicker,
    ProfileResult,
    Request,
    SchedulingResult,
)
from epp.framework.headers import ENCODERS, PREFILLER
from epp.framework.plugin import P
from epp.framework.plugin_status import Legacy, PluginMetric, Sample
from epp.plugins.profile_handlers import missing

_MOST_MODELS = 100
"""Models with their own metric label; clients can send any number of names."""
_MOST_CHARACTERS = 128
_DECISIONS = {
    (False, False): "decode-only",
    (True, False): "prefill-decode",
    (False, True): "encode-decode",
    (True, True): "encode-prefill-decode",
}
"""By the presence of a prefill leg and of an encode leg."""


def decisions(name: str, text: str) -> PluginMetric:
    """Return the metric of a handler's decisions."""
    labels = ("model_name", "decision_type")
    return PluginMetric(
        name, text, labels, is_counter=True, legacy=Legacy(f"llm_d_inference_scheduler_{name}_total", labels)
    )


class LegHandler(ProfilePicker[P], Aggregator[P], PreRequest[P]):
    """Base of the handlers: a leg runs always, or if its decider approves; a metric counts the combinations."""

    decided: ClassVar[PluginMetric]
    """The metric of the decisions, which must be among `metrics`."""

    def set_legs(
        self,
        *,
        decode: str,
        prefill: str,
        encode: str | None,
        prefill_first: bool,
        deciders: Mapping[str, tuple[str, str]],
    ) -> None:
        """Set the profiles of the legs; `deciders` has the parameter and the name of the decider, by profile."""
        self._decode, self._prefill, self._encode = decode, prefill, encode
        order = (prefill, encode, decode) if prefill_first else (decode, encode, prefill)
        self._order = tuple(profile for profile in order if profile is not None)
        self._always = (prefill, decode) if prefill_first else (decode,)
        self._named = deciders
        self._deciders: dict[str, Decider[Any]] = {}
        self._decided: Counter[tuple[str, str]] = Counter()
        self._models: set[str] = set()

    @property
    def samples(self) -> Sequence[Sample]:
        return [Sample(self.decided, count, labels) for labels, count in list(self._decided.items())]

    def pre_request(self, request: Request, result: SchedulingResult) -> None:
        legs = result.profiles
        encodes = self._encode is not None and legs.get(self._encode) is not None
        decision = _DECISIONS[legs.get(self._prefill) is not None, encodes]
        model = request.model[:_MOST_CHARACTERS] or "unknown"
        if model not in self._models and len(self._models) >= _MOST_MODELS:
            model = "other"
        self._models.add(model)
        self._decided[model, decision] += 1

    @property
    def references(self) -> Mapping[str, str]:
        return dict(self._named.values())

    def connect(self, plugins: Mapping[str, Plugin[Any]]) -> None:
        for profile, (parameter, _) in self._named.items():
            plugin = plugins[parameter]
            if not isinstance(plugin, Decider):
                raise ValueError(  # noqa: TRY004  what `connect` raises
                    f"{parameter}: plugin {plugin.name!r} (type {plugin.plugin_type}) is no Decider; name one that is"
                )
            self._deciders[profile] = plugin

    def check_profiles(self, profiles: Sequence[str]) -> Sequence[str]:
        if self._decode not in profiles:
            raise ValueError(f"the decode stage: {missing(self._decode, profiles)}")
        wanted = [profile for profile in self._order if profile in self._always or profile in self._deciders]
        return [
            *(f"profile {one!r} does not exist: its stage is left out" for one in wanted if one not in profiles),
            *(f"profile {one!r} is never run: no stage uses it" for one in profiles if one not in wanted),
        ]

    def pick_profiles(
        self, request: Request, profiles: Sequence[str], results: Mapping[str, ProfileResult | None]
    ) -> Sequence[str]:
        """Return the next leg; empty at the end, or after a failed decode leg.

        Legs without a profile are skipped, except decode. A decider is asked at most once for each request.
        """
        decode = results.get(self._decode)
        if decode is None and self._decode in results:
            return ()
        begun = max((self._order.index(profile) + 1 for profile in results), default=0)
        for profile in self._order[begun:]:
            exists = profile in profiles or profile == self._decode
            if exists and self._wanted(profile, request, decode):
                return (profile,)
        return ()

    def aggregate(self, request: Request, results: Mapping[str, ProfileResult | None]) -> Destination | None:
        """Return the decode leg with the headers of the others; None without a decode leg."""
        decode = results.get(self._decode)
        if decode is None:
            return None
        encode = results.get(self._encode) if self._encode is not None else None
        return Destination(decode, leg_headers(decode, results.get(self._prefill), encode))

    def _wanted(self, profile: str, request: Request, decode: ProfileResult | None) -> bool:
        if profile in self._always:
            return True
        decider = self._deciders.get(profile)
        return decider is not None and decider.decide(request, decode)


def leg_headers(
    decode: ProfileResult, prefill: ProfileResult | None = None, encode: ProfileResult | None = None
) -> dict[str, str]:
    """Return the headers with the addresses of the prefill and encode targets, for the legs that ran.

    The prefill header has only the first target, because the protocol has no fallbacks there. The encode header is a
    list, because encoders share the media items. Neither contains the decode target, which would call itself: without
    other addresses there is no header.
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
