# SPDX-License-Identifier: Apache-2.0
"""Profile handlers that run one profile for each request, the default aggregator, and shadow profiles."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated

from msgspec import Meta

from epp.framework import Aggregator, Destination, Parameters, Port, ProfilePicker, ProfileResult, Request
from epp.framework.errors import BadRequestError
from epp.framework.headers import DATA_PARALLEL, PROFILE
from epp.framework.limits import Corrected, Name, NameOrDefault, Share
from epp.framework.messages import quoted
from epp.framework.plugin import P
from epp.framework.quantities import parse_duration
from epp.framework.roles import Shadowing, ShadowLimits


class _FirstResult(Aggregator[P]):
    """Base: the first result becomes the destination."""

    def aggregate(self, request: Request, results: Mapping[str, ProfileResult | None]) -> Destination | None:
        result = next((result for result in results.values() if result is not None), None)
        return None if result is None else self._destination(result)

    def _destination(self, result: ProfileResult) -> Destination:
        return Destination(result)


class FirstResultAggregator(_FirstResult):
    """Uses the target and the fallbacks of the first profile with a result.

    This is the default if the profile picker is not an aggregator and the configuration declares none. The result of a
    later profile counts only if all earlier profiles failed.
    """

    plugin_type = "first-result-aggregator"


class _OnlyProfile(ProfilePicker[P], _FirstResult[P]):
    """Base: the configuration has exactly one profile."""

    def check_profiles(self, profiles: Sequence[str]) -> Sequence[str]:
        if len(profiles) != 1:
            raise ValueError(f"{self.plugin_type} takes one profile, not {len(profiles)}: {', '.join(profiles)}")
        return ()

    def pick_profiles(
        self, request: Request, profiles: Sequence[str], results: Mapping[str, ProfileResult | None]
    ) -> Sequence[str]:
        return () if results else profiles


class SingleProfileHandler(_OnlyProfile):
    """Runs the only profile, once; its targets become the destination."""

    plugin_type = "single-profile-handler"


class DataParallelParameters(Parameters, frozen=True):
    """Port of the pods."""

    primary_port: Annotated[Port, Corrected(only=(0,))] = 8000
    """Port given to the gateway in place of the port of the rank picked."""


class DataParallelProfileHandler(_OnlyProfile[DataParallelParameters]):
    """Runs the only profile over endpoints that are data-parallel ranks, each a port of its pod.

    The gateway gets `ip:primaryPort` of each target; the header `x-data-parallel-host-port` holds the `ip:port` of the
    rank. It names the first target, even if the gateway falls back to another: leave the picker's `maxNumOfEndpoints`
    at 1.
    """

    plugin_type = "data-parallel-profile-handler"
    sets_headers = (DATA_PARALLEL,)

    def _destination(self, result: ProfileResult) -> Destination:
        return Destination(result, rank_header(result), primary_addresses(result, self.parameters.primary_port))


def primary_addresses(result: ProfileResult, port: int) -> tuple[str, ...]:
    """Return `ip:port` of the primary port for each target."""
    return tuple(replace(target, port=port).hostport for target in result.targets)


def rank_header(result: ProfileResult) -> dict[str, str]:
    """Return the header that names the first target's own `ip:port`."""
    return {DATA_PARALLEL: result.targets[0].hostport}


class HeaderProfileParameters(Parameters, frozen=True):
    """The header, and the profile of requests without it."""

    header_name: NameOrDefault = PROFILE
    """Request header that names the profile; case-insensitive."""
    default_profile: NameOrDefault = "decode"
    """Profile of requests whose header is absent or blank."""

    def __post_init__(self) -> None:
        for name, value in (("headerName", self.header_name), ("defaultProfile", self.default_profile)):
            if not value.strip():
                raise ValueError(f"{name} is empty; give it a name or leave it out")


class HeaderProfileHandler(ProfilePicker[HeaderProfileParameters], _FirstResult[HeaderProfileParameters]):
    """Runs one profile for each request: the one that the header names, else `defaultProfile`.

    A header that names an unknown profile is answered with status 400 and the names of the profiles. If there is only
    one profile, requests without the header run it, regardless of its name.
    """

    plugin_type = "header-profile-handler"

    def check_profiles(self, profiles: Sequence[str]) -> Sequence[str]:
        default = self.parameters.default_profile
        if default in profiles or len(profiles) == 1:
            return ()
        header = self.parameters.header_name
        return (f"defaultProfile: {missing(default, profiles)}: requests without header {header!r} fail",)

    def pick_profiles(
        self, request: Request, profiles: Sequence[str], results: Mapping[str, ProfileResult | None]
    ) -> Sequence[str]:
        if results:
            return ()
        named = request.headers.get(self.parameters.header_name.strip().lower(), "").strip()
        if not named:
            return profiles if len(profiles) == 1 else (self.parameters.default_profile,)
        if named not in profiles:
            raise BadRequestError(
                f"header {self.parameters.header_name!r} names profile {quoted(named)}, which does not exist; "
                f"profiles are {', '.join(profiles)}"
            )
        return (named,)


def missing(profile: str, profiles: Sequence[str]) -> str:
    """Say that there is no such profile, and name those there are."""
    return f"profile {profile!r} does not exist; profiles are {', '.join(profiles)}"


_MOST_SECONDS = 0.05


class ShadowProfilesParameters(Parameters, frozen=True):
    """The shadow profiles, their sample rate and their limits."""

    profiles: Annotated[tuple[Name, ...], Meta(min_length=1, max_length=16)]
    """Names of profiles under `schedulingProfiles`; no profile handler sees them."""
    sample_rate: Share = 0.1
    """Share of the routed requests for which they run, 0..1."""
    max_queue: Annotated[int, Meta(ge=1, le=1024)] = 64
    """Most requests that wait for their shadow profiles; beyond it, shadow profiles are skipped."""
    timeout: str = "5ms"
    """Time limit of one run, at most `50ms`. A run over the limit is stopped; repeated excess disables the profile."""

    def __post_init__(self) -> None:
        twice = [name for name, count in Counter(self.profiles).items() if count > 1]
        if twice:
            raise ValueError(f"profiles names {twice[0]!r} twice: name it once")
        try:
            seconds = parse_duration(self.timeout)
        except ValueError as error:
            raise ValueError(f"timeout: {error}") from None
        if not 0 < seconds <= _MOST_SECONDS:
            raise ValueError(
                f"timeout is {self.timeout!r}: write a time above 0 and up to 50ms, as requests wait for it"
            )


class ShadowProfiles(Shadowing[ShadowProfilesParameters]):
    """Runs profiles that decide nothing, to compare their picks with the real ones.

    After the response to a sampled request, each of these profiles picks from the same endpoints with the same data.
    Metrics and decision records show how often it agrees, by how much its pick scores higher by its own scorers, and
    which accelerators and dollars an hour it would have used. Its picks reserve nothing and leave no trace in plugins.
    A shadow profile that fails or is slow does not affect requests.
    """

    plugin_type = "shadow-profiles"

    @property
    def shadow_profiles(self) -> Sequence[str]:
        return self.parameters.profiles

    @property
    def limits(self) -> ShadowLimits:
        given = self.parameters
        return ShadowLimits(given.sample_rate, given.max_queue, parse_duration(given.timeout))
