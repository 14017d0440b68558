# SPDX-License-Identifier: Apache-2.0
"""Causes for which filters drop endpoints, and the most lasting one of several."""

from collections.abc import Iterable, Mapping
from enum import StrEnum

import numpy as np

from epp.framework.arrays import Mask


class DropCause(StrEnum):
    """Why a filter drops an endpoint; from the most lasting cause to the one that passes soonest."""

    CONSTRAINT = "constraint"
    """It is not what is asked for: other hardware, too expensive, another label. Waiting does not change that."""
    AVAILABILITY = "availability"
    """It drains, is unhealthy or not ready, or its state is unknown."""
    STALE = "stale"
    """It has not reported for too long."""
    SATURATION = "saturation"
    """It is too busy."""
    UNSTATED = "unstated"
    """Of filters that do not say."""


def lasting_cause(kept: Iterable[Mapping[DropCause, Mask]], otherwise: DropCause) -> DropCause:
    """Return the first cause, in their order, that leaves none together with those before it.

    `kept` has, for each filter, the candidates that it keeps as far as each cause goes. Thus the order of the filters
    does not matter: where a constraint alone leaves none, that is the cause, however busy the endpoints are. Where all
    of them leave some, as filters can that compare candidates with each other, it is `otherwise`.
    """
    filters = tuple(kept)
    for number, cause in enumerate(DropCause, 1):
        causes = tuple(DropCause)[:number]
        masks = [mask for each in filters for which, mask in each.items() if which in causes]
        if masks and not np.logical_and.reduce(masks).any():
            return cause
    return otherwise
