# SPDX-License-Identifier: Apache-2.0
"""Prefers endpoints whose label has the value of a request header."""

import numpy as np

from epp.framework import Candidates, Category, Floats, Name, Parameters, Request, Scorer


class HeaderLabelAffinityParameters(Parameters, frozen=True):
    """The header and the label to compare."""

    header_name: Name
    """Request header, case-insensitive."""
    label_key: Name
    """Label to compare with the header's value."""


class HeaderLabelAffinityScorer(Scorer[HeaderLabelAffinityParameters]):
    """1 where the label equals the header's value, else 0.

    0 for all if the header is missing or empty.
    """

    plugin_type = "header-label-affinity-scorer"
    category = Category.AFFINITY
    zero_means = "has another label than the header asks for, or the header is missing"

    def score(self, request: Request, candidates: Candidates) -> Floats:
        wanted = request.headers.get(self.parameters.header_name.lower())
        if not wanted:
            return np.zeros(len(candidates))
        return candidates.where_label_is(self.parameters.label_key, wanted).astype(np.float64)
