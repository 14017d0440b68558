"""Chooses the endpoints of all legs together, where each profile alone would choose for itself."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np

from epp.framework import Aggregator, Destination, Floats, Positions, ProfileResult, Request, Stability
from epp.framework.headers import ENCODERS, PREFILLER
from epp.framework.snapshot import TOPOLOGY
from epp.plugins.aggregators.joint_parameters import JointParameters
from epp.plugins.aggregators.leg import Option, options
from epp.plugins.profile_pickers.disagg_headers import disagg_headers


class JointAggregator(Aggregator[JointParameters]):
    """Takes, out of the `topK` best of each leg, the combination whose sum of these is the highest.

    - for each leg, its stage's weight times its score: the profile's total over the sum of its positive weights;
    - for each two legs, `localityWeight` times their nearness, `pairingWeight` times the match of their accelerators.

    So a prefill endpoint that is second best, but in the decode endpoint's zone, may win over the best one far away.
    It stands beside a profile handler, best `disagg-profile-handler`: that one still chooses which profiles run, and
    this one what becomes of their results (a `primaryPort` of the handler's has no effect then).

    One endpoint for two legs counts as one host and one kind of accelerator, but not where decode is one of the two:
    a leg was asked for to take work off the decode endpoint, so nothing is gained by giving it back.

    A profile's own first pick is always among its `topK`, and of equal combinations the one nearest to the profiles'
    own choices wins, the decode leg's first. A leg that gets another endpoint than its own pick keeps as many targets
    as its picker returned, the earlier ones as fallbacks. The profiles want a picker that takes the highest totals,
    for what a random picker spreads, this brings together again.

    Decode is the primary profile; where it failed, the request fails. Where no decode profile was run, the first
    profile with a result is. A leg that is alone keeps its own pick.
    """

    plugin_type = "joint-aggregator"
    stability = Stability.ALPHA
    sets_headers = (PREFILLER, ENCODERS)

    def setup(self) -> None:
        if self.parameters.locality_weight:
            self.reads = (TOPOLOGY,)

    def aggregate(self, request: Request, results: Mapping[str, ProfileResult | None]) -> Destination | None:
        profiles, weights = self.parameters.profiles, self.parameters.weights
        if profiles.decode not in results:
            return next((Destination(result) for result in results.values() if result is not None), None)
        decode = results[profiles.decode]
        if decode is None:
            return None
        stages = {
            profiles.decode: weights.decode,
            profiles.prefill: weights.prefill,
            profiles.encode: weights.encode,
        }
        legs = {name: result for name in stages if (result := results.get(name)) is not None}
        if len(legs) == 1:
            return Destination(decode)
        offers = [
            options(request, leg, self.parameters.top_k, self.parameters.pairing.label_key) for leg in legs.values()
        ]
        chosen = self._best(offers, [stages[name] for name in legs])
        final = {
            name: replace(leg, picked=_picks(leg.picked, option.position))
            for (name, leg), option in zip(legs.items(), chosen, strict=True)
        }
        headers = disagg_headers(final[profiles.decode], final.get(profiles.prefill), final.get(profiles.encode))
        return Destination(final[profiles.decode], headers, repicked=final)

    def _best(self, offers: Sequence[Sequence[Option]], weights: Sequence[float]) -> list[Option]:
        """Return one option of each leg, decode first among them."""
        legs = len(offers)
        alone = [
            weight * np.array([option.score for option in offer]) for weight, offer in zip(weights, offers, strict=True)
        ]
        pairs = {
            (i, j): np.array(
                [[self._together(then, first, decoding=i == 0) for first in offers[j]] for then in offers[i]]
            )
            for i, j in combinations(range(legs), 2)
        }
        worth: Floats = sum((_spread(scores, (leg,), legs) for leg, scores in enumerate(alone)), np.zeros(()))
        worth = worth + sum(_spread(table, pair, legs) for pair, table in pairs.items())
        best = np.argwhere(worth == worth.max())
        ranks = best[best.sum(axis=1).argmin()]  # of equals the first: lexicographic
        return [offer[rank] for offer, rank in zip(offers, ranks, strict=True)]

    def _together(self, then: Option, first: Option, *, decoding: bool) -> float:
        """Return what two legs are worth to each other; `first` works before `then`, which may be the decode leg."""
        parameters = self.parameters
        near, match = parameters.locality.host, parameters.pairing.same
        if then.slot != first.slot:
            near = parameters.locality.between(then.topology, first.topology)
            match = parameters.pairing.between(first.kind, then.kind)
        elif decoding:
            return 0.0
        return parameters.locality_weight * near + parameters.pairing_weight * match


def _spread(values: Floats, legs: tuple[int, ...], count: int) -> Floats:
    """Return the values with an axis for each of so many legs, of length 1 for those that they do not depend on."""
    return np.expand_dims(values, tuple(leg for leg in range(count) if leg not in legs))


def _picks(own: Positions, chosen: int) -> Positions:
    """Return the position chosen and the profile's other picks in their order, as many as before."""
    return np.concatenate(([chosen], own[own != chosen]))[: len(own)].astype(np.intp)
