# SPDX-License-Identifier: Apache-2.0
"""Keeps the endpoints on the node of the endpoint that serves the other leg of a disaggregated request."""

from typing import Literal

import numpy as np

from epp.framework import ACCELERATOR, Candidates, Filter, FilterParameters, Mask, Request
from epp.framework.accelerators.places import known_nodes, node_numbers
from epp.framework.result import DropCause


class SameNodeFilterParameters(FilterParameters, frozen=True):
    """Treatment of unknown nodes."""

    on_unknown: Literal["Pass", "Fail"] = "Fail"
    """How to treat endpoints whose node is unknown, and all if that of the peer is: `Fail` drops, `Pass` keeps them."""


class SameNodeFilter(Filter[SameNodeFilterParameters]):
    """Keeps an endpoint if it is on the node of the peer, so that all legs of a request run on one machine.

    The peer is the endpoint picked for the first leg of the request; without one, all endpoints are kept. If no
    endpoint is left, the profile fails, unless `fallbackOnEmpty` is set.
    """

    plugin_type = "same-node-filter"
    drops = DropCause.CONSTRAINT
    drop_means = "is on another node than the peer, or its node is not known"
    reads = (ACCELERATOR,)

    def filter(self, request: Request, candidates: Candidates) -> Mask:  # noqa: ARG002
        peer = candidates.peer
        if peer is None:
            return np.ones(len(candidates), dtype=np.bool_)
        nodes, known = node_numbers(candidates.snapshot), known_nodes(candidates.snapshot)
        same: Mask = nodes[candidates.slots] == nodes[peer]
        if self.parameters.on_unknown == "Pass":
            same = same | ~known[candidates.slots] | (not known[peer])
        return same
