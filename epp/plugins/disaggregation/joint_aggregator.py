# SPDX-License-Identifier: Apache-2.0
"""Picks the endpoints of all legs together instead of one by one."""

from collections.abc import Mapping, Sequence
from itertools import combinations

import numpy as np
from msgspec.structs import replace

from epp.framework import (
    ACCELERATOR,
    TOPOLOGY,
    Aggregator,
    Destination,
    Floats,
    Positions,
    ProfileResult,
    Request,
    Stability,
)
from epp.framework.headers import ENCODERS, PREFILLER
from epp.plugins.disaggregation.joint_options import Option, options
from epp.plugins.disaggregation.joint_parameters import JointParameters
from epp.plugins.disaggregation.legs import leg_headers


class JointAggregator(Aggregator[JointParameters]):
    """Picks the combination, out of the `topK` best endpoints of each leg, with the highest sum of these terms.

    - for each leg, its stage's weight times its score: the profile's total over the sum of its positive weights;
    - for each two legs, `localityWeight` times their proximity, `pairingWeight` times the match of their accelerators.

    So a prefill endpoint that is second best, but in the decode endpoint's zone, may win over the best one far away.
    Use it with a profile handler, preferably `disagg-profile-handler`: the handler chooses the profiles that run, this
    plugin combines their results (a `primaryPort` of the handler has no effect then).

    One endpoint for two legs counts as one host and one kind of accelerator, unless one of the two is decode: such a
    leg exists to take work off the decode endpoint, so that endpoint gains nothing by it.

    A profile's own first pick is always among its `topK`. Of equal combinations, the one closest to the profiles' own
    picks wins, the decode leg's first. A leg that gets another endpoint than its own pick keeps as many targets as its
    picker returned, the earlier ones as fallbacks. Use pickers of the highest totals in the profiles: this plugin
    undoes the spread of a random picker.

    Decode is the primary profile; if it failed, the request fails. If no decode profile was run, the first profile
    with a result is primary. A single leg keeps its own pick.
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
        stages = {
            profiles.decode: weights.decode,
            profiles.prefill: weights.prefill,
            profiles.encode: weights.encode,
        }
        legs = {name: result for name in stages if (result := results.get(name)) is not None}
        if len(legs) == 1:
            return Destination(decode)
        offers = [options(request, leg, self.parameters.top_k, self.parameters.pairing) for leg in legs.values()]
        chosen = self._best(offers, [stages[name] for name in legs])
        final = {
            name: replace(leg, picked=_picks(leg.picked, option.position))
            for (name, leg), option in zip(legs.items(), chosen, strict=True)
        }
        headers = leg_headers(final[profiles.decode], final.get(profiles.prefill), final.get(profiles.encode))
        return Destination(final[profiles.decode], headers, repicked=final)

    def _best(self, offers: Sequence[Sequence[Option]], weights: Sequence[float]) -> list[Option]:
        """Return one option of each leg; the first leg is decode."""
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
        """Return the value of a pair of legs; `first` runs before `then`, which may be the decode leg."""
        parameters = self.parameters
        near, match = parameters.locality.host, parameters.pairing.same
        if then.slot != first.slot:
            of_devices = parameters.locality.of_devices(then.devices, first.devices)
            near = max(parameters.locality.between(then.topology, first.topology), of_devices)
            match = parameters.pairing.between(first.kind, then.kind)
        elif decoding:
            return 0.0
        return parameters.locality_weight * near + parameters.pairing_weight * match


def _spread(values: Floats, legs: tuple[int, ...], count: int) -> Floats:
    """Return the values with one axis for each of `count` legs, of length 1 for legs that they do not depend on."""
    return np.expand_dims(values, tuple(leg for leg in range(count) if leg not in legs))


def _picks(own: Positions, chosen: int) -> Positions:
    """Return the chosen position, then the profile's other picks in order, as many as before."""
    return np.concatenate(([chosen], own[own != chosen]))[: len(own)].astype(np.intp)
