"""Which leg of a disaggregated request runs next, and what the legs add up to."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from epp.framework import Decider, Destination, Plugin, ProfileResult, Request
from epp.plugins.profile_pickers.disagg_headers import disagg_headers
from epp.plugins.profile_pickers.profile_names import missing


class DisaggLegs:
    """The legs in their order: each runs always, or when its decider says so, or never."""

    def __init__(self, *, decode: str, prefill: str, encode: str | None = None, prefill_first: bool = False) -> None:
        self._decode, self._prefill, self._encode = decode, prefill, encode
        order = (prefill, encode, decode) if prefill_first else (decode, encode, prefill)
        self._order = tuple(profile for profile in order if profile is not None)
        self._always = (prefill, decode) if prefill_first else (decode,)
        self._deciders: dict[str, Decider[Any]] = {}

    def decide_by(self, profile: str, plugin: Plugin[Any], parameter: str) -> None:
        """Let a decider have the say about a leg; raises ValueError for a plugin that is none."""
        if not isinstance(plugin, Decider):
            raise ValueError(  # noqa: TRY004  what `connect` raises
                f"{parameter}: plugin {plugin.name!r} (type {plugin.plugin_type}) is no Decider; name one that is"
            )
        self._deciders[profile] = plugin

    def check(self, profiles: Collection[str]) -> Sequence[str]:
        """Return a sentence for each leg that is wanted and has no profile, and for each profile that has no leg.

        Raises ValueError where there is no decode profile.
        """
        if self._decode not in profiles:
            raise ValueError(f"the decode stage: {missing(self._decode, tuple(profiles))}")
        wanted = [profile for profile in self._order if profile in self._always or profile in self._deciders]
        return [
            *(f"profile {one!r} does not exist: its stage is left out" for one in wanted if one not in profiles),
            *(f"profile {one!r} is never run: no stage uses it" for one in profiles if one not in wanted),
        ]

    def next(
        self, request: Request, profiles: Collection[str], results: Mapping[str, ProfileResult | None]
    ) -> Sequence[str]:
        """Return the one leg to run now, none at the end.

        A leg whose profile does not exist is passed over, the decode leg excepted; after a decode leg that failed
        none is run. Every decider is asked at most once for a request.
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

    def aggregate(self, results: Mapping[str, ProfileResult | None]) -> Destination | None:
        """Return the decode leg with the headers that name the other ones; None without a decode leg."""
        decode = results.get(self._decode)
        if decode is None:
            return None
        encode = results.get(self._encode) if self._encode is not None else None
        return Destination(decode, disagg_headers(decode, results.get(self._prefill), encode))

    def _wanted(self, profile: str, request: Request, decode: ProfileResult | None) -> bool:
        if profile in self._always:
            return True
        decider = self._deciders.get(profile)
        return decider is not None and decider.decide(request, decode)
