# SPDX-License-Identifier: Apache-2.0
"""Pickers, profile handlers that run one profile for each request, default aggregator, and shadow profiles."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated

import numpy as np
import xxhash
from msgspec import Meta
from numpy.typing import NDArray

from epp.framework import (
    LAST_PICKED,
    Aggregator,
    Candidates,
    Destination,
    Draw,
    Endpoint,
    Floats,
    Parameters,
    Picker,
    Port,
    Positions,
    ProfilePicker,
    ProfileResult,
    Request,
)
from epp.framework.arrays import ROUNDING, highest
from epp.framework.errors import BadRequestError
from epp.framework.headers import DATA_PARALLEL, PROFILE
from epp.framework.limits import Corrected, CountOrDefault, Name, NameOrDefault, Natural, NonNegative, Share, Tunable
from epp.framework.messages import quoted
from epp.framework.plugin import P
from epp.framework.quantities import duration_setting, parse_duration
from epp.framework.roles import Shadowing, ShadowLimits


class PickerParameters(Parameters, frozen=True):
    """Parameters of all pickers."""

    max_num_of_endpoints: CountOrDefault = 1
    """Maximum endpoints returned: the target, and fallbacks that the gateway tries in order."""
    close_score_epsilon: NonNegative | None = None
    """Maximum distance of the total of a fallback below the total of the target; by default, no limit. A total is the
    sum of weight times score, so that 0.1 is a tenth of a scorer of weight 1."""


class RandomPickerParameters(PickerParameters, frozen=True):
    """Number of candidates that are drawn from."""

    top_n: Natural = 0
    """Number of candidates with the highest totals to draw from, ties broken at random; 0 for all candidates."""

    def __post_init__(self) -> None:
        if 0 < self.top_n < self.max_num_of_endpoints:
            raise ValueError(
                f"topN is {self.top_n} and maxNumOfEndpoints {self.max_num_of_endpoints}: fallbacks are drawn from "
                "the same candidates, so write a topN of at least maxNumOfEndpoints"
            )


class WeightedRandomPickerParameters(RandomPickerParameters, frozen=True):
    """Number of candidates to draw from, and the influence of their totals."""

    temperature: Annotated[float, Meta(ge=0.01, le=100), Tunable(0.05, 20, log=True)] = 1.0
    """The chance of a candidate is proportional to `total ^ (1 / temperature)`: values below 1 favour the highest
    totals, values above 1 make chances more equal."""


class MaxScorePicker(Picker[PickerParameters]):
    """Picks the `maxNumOfEndpoints` highest totals, best first, without randomness.

    Equal totals are ordered by least recently picked, then by a hash of the request's seed and the endpoint's id: a
    burst of requests spreads over identical endpoints.
    """

    plugin_type = "max-score-picker"
    may_read = (LAST_PICKED,)

    def pick(self, request: Request, candidates: Candidates, totals: Floats, draw: Draw) -> Positions:
        if len(totals) == 1:
            return np.zeros(1, dtype=np.intp)
        wanted = min(self.parameters.max_num_of_endpoints, len(totals))
        floor = highest(totals) if wanted == 1 else np.partition(totals, -wanted)[-wanted]
        contenders: Positions = (totals >= floor).nonzero()[0]
        if len(contenders) == 1:
            return contenders
        slots = candidates.slots[contenders]
        last_picked = candidates.snapshot.column(LAST_PICKED)[slots]
        hashes = _mix(candidates.snapshot.endpoints.derive_numbers(_id_hash)[slots], request.seed)
        order = np.lexsort((hashes, last_picked, -totals[contenders]))
        return _close(contenders[order[:wanted]], totals, self.parameters)


class RandomPicker(Picker[RandomPickerParameters]):
    """Picks `maxNumOfEndpoints` of the `topN` best candidates at random, or of all candidates without `topN`."""

    plugin_type = "random-picker"

    def pick(self, request: Request, candidates: Candidates, totals: Floats, draw: Draw) -> Positions:
        return _first(draw().permutation(len(candidates)), totals, self.parameters)


class WeightedRandomPicker(Picker[WeightedRandomPickerParameters]):
    """Samples without replacement: the `maxNumOfEndpoints` largest keys `U^(1/w)`, largest first.

    The weight `w` is `total ^ (1 / temperature)`. Method A-ES of Efraimidis and Spirakis (2006). The keys are compared
    as `log(w) - log(-log U)`, a monotone function of them that neither under- nor overflows. Totals of 0 or less come
    last, in random order; if there are no others, the choice is uniform. With `topN`, only the highest totals count.
    """

    plugin_type = "weighted-random-picker"

    def pick(self, request: Request, candidates: Candidates, totals: Floats, draw: Draw) -> Positions:
        noise = draw().gumbel(size=len(totals))  # -log(-log U)
        positive = totals > 0
        keys = np.full(len(totals), -np.inf)
        keys[positive] = np.log(totals[positive]) / self.parameters.temperature + noise[positive]
        return _first(np.lexsort((-noise, -keys)), totals, self.parameters)


def _first(order: Positions, totals: Floats, parameters: RandomPickerParameters) -> Positions:
    """Return the first positions in this order among the `topN` highest totals; among equal totals, the first count."""
    if parameters.top_n:
        order = order[np.sort(np.argsort(-totals[order], kind="stable")[: parameters.top_n])]
    return _close(order[: parameters.max_num_of_endpoints], totals, parameters)


def _close(picked: Positions, totals: Floats, parameters: PickerParameters) -> Positions:
    """Return the target, and the fallbacks whose totals are close to its total."""
    epsilon = parameters.close_score_epsilon
    if epsilon is None or len(picked) == 1:
        return picked
    near: Positions = picked[totals[picked] >= totals[picked[0]] - epsilon - ROUNDING]
    return near


def _id_hash(endpoint: Endpoint | None) -> float:
    """Hash an endpoint's id to 53 bits, which a float64 holds exactly."""
    return 0.0 if endpoint is None else float(xxhash.xxh3_64_intdigest(endpoint.id.encode()) >> 11)


def _mix(id_hashes: Floats, seed: int) -> NDArray[np.uint64]:
    """Hash endpoint ids together with the seed (the finalizer of splitmix64)."""
    mixed = id_hashes.astype(np.uint64) ^ np.uint64(seed)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


class _FirstResult(Aggregator[P]):
    """Base class: the first result becomes the destination."""

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
    """Base class: the configuration has exactly one profile."""

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
    """Port given to the gateway in place of the port of the picked rank."""


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
    """Return the message for a profile that does not exist, with the names of all profiles."""
    return f"profile {profile!r} does not exist; profiles are {', '.join(profiles)}"


_MOST_SECONDS = 0.05


class ShadowProfilesParameters(Parameters, frozen=True):
    """The shadow profiles, their sample rate and their limits."""

    profiles: Annotated[tuple[Name, ...], Meta(min_length=1, max_length=16)]
    """Names of profiles under `schedulingProfiles`; no profile handler sees them."""
    sample_rate: Share = 0.1
    """Share of the routed requests for which they run, 0..1."""
    max_queue: Annotated[int, Meta(ge=1, le=1024)] = 64
    """Maximum requests that wait for their shadow profiles; beyond it, shadow profiles are skipped."""
    timeout: str = "5ms"
    """Time limit of one run, at most `50ms`. A run over the limit is stopped; repeated excess disables the profile."""

    def __post_init__(self) -> None:
        repeated = [name for name, count in Counter(self.profiles).items() if count > 1]
        if repeated:
            raise ValueError(f"profiles repeats {repeated[0]!r}; remove one")
        if not 0 < duration_setting("timeout", self.timeout, positive=False) <= _MOST_SECONDS:
            raise ValueError(
                f"timeout is {self.timeout!r}: write a time above 0 and up to 50ms, as requests wait for it"
            )


class ShadowProfiles(Shadowing[ShadowProfilesParameters]):
    """Runs profiles without effect on routing, to compare their picks with the real ones.

    After the response to a sampled request, each of these profiles picks from the same endpoints with the same data.
    Metrics and decision records show how often it agrees, by how much its pick scores higher by its own scorers, and
    which accelerators and dollars an hour it would have used. Its picks reserve nothing and do not change the state of
    plugins. A shadow profile that fails or is slow does not affect requests.
    """

    plugin_type = "shadow-profiles"

    @property
    def shadow_profiles(self) -> Sequence[str]:
        return self.parameters.profiles

    @property
    def limits(self) -> ShadowLimits:
        given = self.parameters
        return ShadowLimits(given.sample_rate, given.max_queue, parse_duration(given.timeout))
