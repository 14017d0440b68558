# SPDX-License-Identifier: Apache-2.0
"""Pick a prefill and a decode endpoint together, by the time and cost of the pair."""

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import chain, combinations
from typing import Annotated, Literal

import numpy as np
from msgspec import Meta, field
from msgspec.structs import replace

from epp.framework import (
    ACCELERATOR,
    LAST_PICKED,
    TOPOLOGY,
    AcceleratorTag,
    Aggregator,
    Destination,
    Endpoint,
    Floats,
    Name,
    NonNegative,
    Parameters,
    Positions,
    ProfileResult,
    Request,
    Share,
    Snapshot,
    Stability,
    Topology,
    Tunable,
)
from epp.framework.accelerators.tag import Sites, names_of
from epp.framework.candidates import LEVELS
from epp.framework.headers import ENCODERS, PREFILLER
from epp.plugins.disaggregation_handlers import StageProfiles, leg_headers


class StageWeights(Parameters, frozen=True):
    """Weights of the scores, by stage."""

    decode: NonNegative = 1.0
    """Weight of the decode leg's score."""
    prefill: NonNegative = 1.0
    """Weight of the prefill leg's score."""
    encode: NonNegative = 1.0
    """Weight of the encode leg's score."""


class LocalityBands(Parameters, frozen=True):
    """Value of proximity, 0..1, for the narrowest known level that both endpoints share; 0 if they share none.

    A shared PCIe root or NVLink clique counts instead if its value is higher.
    """

    host: Share = 1.0
    """Value for endpoints on one host."""
    rack: Share = 0.2
    """Value for endpoints in one rack."""
    zone: Share = 0.05
    """Value for endpoints in one zone."""
    region: Share = 0.02
    """Value for endpoints in one region."""
    cluster: Share = 0.01
    """Value for endpoints in one cluster."""
    pcie_root: Share = 1.0
    """Value for endpoints with devices at one PCIe root."""
    clique: Share = 1.0
    """Value for endpoints with devices in one NVLink clique or compute domain, on any hosts."""

    def between(self, one: Topology, other: Topology) -> float:
        """Return the value of the narrowest shared level; unknown levels are not shared."""
        for level in LEVELS:
            place = getattr(one, level)
            if place and place == getattr(other, level):
                value: float = getattr(self, level)
                return value
        return 0.0

    def of_devices(self, one: Sites, other: Sites) -> float:
        """Return the higher value of a PCIe root and a clique, if the devices share one; else 0."""
        return max(self.pcie_root * one.share(other, "root"), self.clique * one.share(other, "clique", "domain"))


class PairingRule(Parameters, frozen=True):
    """Value of one pair of accelerator kinds."""

    from_: str = field(name="from")
    """Accelerator kind of the earlier leg (encode, prefill, decode), or a shell-style pattern of kinds."""
    to: str
    """Kind or pattern of the later leg."""
    value: Share
    """Value of the pair, 0..1."""
    ordered: bool = False
    """Apply the rule in this direction only."""

    def matches(self, first: str, then: str) -> bool:
        if fnmatchcase(first, self.from_) and fnmatchcase(then, self.to):
            return True
        return not self.ordered and fnmatchcase(then, self.from_) and fnmatchcase(first, self.to)


class Pairing(Parameters, frozen=True):
    """Value of pairs of accelerators: the first matching rule, else `same`, `otherwise` or `unknown`."""

    by: Literal["name", "family", "vendor"] = "name"
    """Kind of an accelerator. `name`: the label `labelKey` of the endpoint, or else its AcceleratorClass or model.
    `family` or `vendor` of the accelerator: such as `hopper` or `nvidia`."""
    label_key: Name = "llm-d.ai/accelerator"
    """Endpoint label with the kind of the accelerator; only for `name`."""
    same: Share = 1.0
    """Value of two accelerators of the same kind, 0..1."""
    otherwise: Share = 0.0
    """Value of two accelerators of different kinds, 0..1."""
    unknown: Share = 0.5
    """Value of a pair with an unknown kind, 0..1; best between `otherwise` and `same`."""
    rules: tuple[PairingRule, ...] = ()
    """Exceptions, in order of precedence: pairs that transfer a KV cache well, or not at all."""

    def kind_of(self, endpoint: Endpoint | None, tag: AcceleratorTag) -> str:
        """Return the kind of an endpoint's accelerator; empty if unknown."""
        if self.by == "family":
            return tag.family
        if self.by == "vendor":
            return tag.vendor
        labels = {} if endpoint is None else endpoint.labels
        return labels.get(self.label_key, "") or next(iter(names_of(tag)), "")

    def between(self, first: str, then: str) -> float:
        """Return the value of two kinds, in the order in which they run; an empty one is unknown."""
        if not (first and then):
            return self.unknown
        for rule in self.rules:
            if rule.matches(first, then):
                return rule.value
        return self.same if first == then else self.otherwise


class JointParameters(Parameters, frozen=True):
    """Terms of the sum that is maximised, and their weights."""

    profiles: StageProfiles = field(default_factory=StageProfiles)
    """Names of the profiles, by stage; the same as the profile handler's."""
    weights: StageWeights = field(default_factory=StageWeights)
    """Weights of the legs' scores, by stage."""
    locality_weight: Annotated[NonNegative, Tunable(0, 4)] = 1.0
    """Weight of the proximity of two legs; 0 to ignore it."""
    locality: LocalityBands = field(default_factory=LocalityBands)
    """Value of proximity, by the narrowest shared level."""
    pairing_weight: Annotated[NonNegative, Tunable(0, 4)] = 1.0
    """Weight of the match of two legs' accelerators; 0 to ignore it."""
    pairing: Pairing = field(default_factory=Pairing)
    """Value of pairs of accelerators."""
    top_k: Annotated[int, Meta(ge=1, le=8)] = 4
    """Endpoints to consider for each profile, 1 to 8; 1 keeps the pick of every profile."""


def _shortlist(request: Request, result: ProfileResult, count: int) -> Positions:
    """Return up to `count` positions: the profile's own first pick, then the highest other totals.

    Equal totals are ordered by least recently picked, then in rotation by the request's seed.
    """
    candidates, totals, own = result.candidates, result.totals, result.picked[:1]
    count = min(count, len(totals))
    contenders = np.flatnonzero(totals >= np.partition(totals, -count)[-count])
    contenders = contenders[contenders != own]
    slots = candidates.slots[contenders]
    capacity = candidates.snapshot.capacity
    last_picked = candidates.snapshot.column(LAST_PICKED)[slots]
    order = np.lexsort(((slots + request.seed % capacity) % capacity, last_picked, -totals[contenders]))
    return np.concatenate((own, contenders[order[: count - 1]]))


class JointAggregator(Aggregator[JointParameters]):
    """Picks the combination, out of the `topK` best endpoints of each leg, with the highest sum of these terms.

    - for each leg, its stage's weight times its score: the profile's total over the sum of its positive weights;
    - for each two legs, `localityWeight` times their proximity, `pairingWeight` times the match of their accelerators.

    For example, the second-best prefill endpoint in the decode endpoint's zone may win over a distant best one. Use it
    with a profile handler, preferably `disagg-profile-handler`: the handler chooses the profiles that run, and this
    plugin combines their results. A `primaryPort` of the handler then has no effect.

    One endpoint for two legs counts as one host and one kind of accelerator. If one of the legs is decode, the pair has
    value 0 instead, because the other leg should relieve the decode endpoint.

    The `topK` always include the profile's own first pick. Among equal combinations, the one closest to the profiles'
    own picks wins, and the decode leg's pick counts first. A leg with a changed endpoint keeps its number of targets,
    with the earlier ones as fallbacks. Use `max-score-picker` in the profiles; the spread of random pickers is lost.

    Decode is the primary profile; if it failed, the request fails. If no decode profile was run, the first profile with
    a result is primary. A single leg keeps its own pick.
    """

    plugin_type = "joint-aggregator"
    stability = Stability.ALPHA
    sets_headers = (PREFILLER, ENCODERS)

    def setup(self) -> None:
        by_tag = self.parameters.pairing_weight and self.parameters.pairing.by != "name"
        self.reads = (*([TOPOLOGY] if self.parameters.locality_weight else []), *([ACCELERATOR] if by_tag else []))
        if not by_tag:
            self.may_read = (ACCELERATOR,)

    def aggregate(self, request: Request, results: Mapping[str, ProfileResult | None]) -> Destination | None:
        profiles, weights = self.parameters.profiles, self.parameters.weights
        if profiles.decode not in results:
            return next((Destination(result) for result in results.values() if result is not None), None)
        decode = results[profiles.decode]
        if decode is None:
            return None
        stages = {profiles.decode: weights.decode, profiles.prefill: weights.prefill, profiles.encode: weights.encode}
        legs = {name: result for name in stages if (result := results.get(name)) is not None}
        if len(legs) == 1:
            return Destination(decode)
        offers = [_shortlist(request, leg, self.parameters.top_k) for leg in legs.values()]
        chosen = self._best(list(legs.values()), offers, [stages[name] for name in legs])
        final = {
            name: replace(leg, picked=_picks(leg.picked, position))
            for (name, leg), position in zip(legs.items(), chosen, strict=True)
        }
        headers = leg_headers(final[profiles.decode], final.get(profiles.prefill), final.get(profiles.encode))
        return Destination(final[profiles.decode], headers, repicked=final)

    def _best(self, legs: Sequence[ProfileResult], offers: Sequence[Positions], weights: Sequence[float]) -> list[int]:
        """Return the best of the positions offered for each leg; the first leg is decode."""
        worth: Floats = np.zeros(())
        for number, (leg, offer, weight) in enumerate(zip(legs, offers, weights, strict=True)):
            full = sum(trace.weight for trace in leg.scores if trace.weight > 0) or 1.0
            worth = worth + _with_axes(weight * (leg.totals[offer] / full), (number,), len(legs))
        slots = [leg.candidates.slots[offer].tolist() for leg, offer in zip(legs, offers, strict=True)]
        snapshot = legs[0].candidates.snapshot
        endpoints, tags = snapshot.endpoints.values, snapshot.records(ACCELERATOR).values
        kinds = {slot: self.parameters.pairing.kind_of(endpoints[slot], tags[slot]) for slot in chain(*slots)}
        for i, j in combinations(range(len(legs)), 2):
            pairs = [
                [self._pair_value(snapshot, kinds, then, first, decoding=i == 0) for first in slots[j]]
                for then in slots[i]
            ]
            worth = worth + _with_axes(np.array(pairs), (i, j), len(legs))
        best = np.argwhere(worth == worth.max())
        ranks = best[best.sum(axis=1).argmin()]  # the first of equals, lexicographically
        return [int(offer[rank]) for offer, rank in zip(offers, ranks, strict=True)]

    def _pair_value(
        self, snapshot: Snapshot, kinds: Mapping[int, str], then: int, first: int, *, decoding: bool
    ) -> float:
        """Return the value of a pair of slots; `first` runs before `then`, which may be the decode leg."""
        locality, pairing = self.parameters.locality, self.parameters.pairing
        proximity, match = locality.host, pairing.same
        if then != first:
            places, tags = snapshot.records(TOPOLOGY).values, snapshot.records(ACCELERATOR).values
            of_devices = locality.of_devices(tags[then].sites, tags[first].sites)
            proximity = max(locality.between(places[then], places[first]), of_devices)
            match = pairing.between(kinds[first], kinds[then])
        elif decoding:
            return 0.0
        return self.parameters.locality_weight * proximity + self.parameters.pairing_weight * match


def _with_axes(values: Floats, legs: tuple[int, ...], count: int) -> Floats:
    """Return the values with one axis for each of `count` legs, of length 1 for legs without influence."""
    return np.expand_dims(values, tuple(leg for leg in range(count) if leg not in legs))


def _picks(own: Positions, chosen: int) -> Positions:
    """Return the chosen position, then the profile's other picks in order, up to their former number."""
    return np.concatenate(([chosen], own[own != chosen]))[: len(own)].astype(np.intp)
