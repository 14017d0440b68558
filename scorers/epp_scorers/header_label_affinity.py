# SPDX-License-Identifier: Apache-2.0
"""Prefers endpoints whose label has the value of a request header."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from epp.framework import Candidates, Category, Endpoint, Floats, Name, Parameters, Request, Scorer


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

    def score(self, request: Request, candidates: Candidates) -> Floats:
        wanted = request.headers.get(self.parameters.header_name.lower())
        numbers, values = candidates.snapshot.endpoints.derive(_numbered_values, self.parameters.label_key)
        number = numbers.get(wanted or "", 0)
        if number == 0:
            return np.zeros(len(candidates))
        return np.where(values[candidates.slots] == number, 1.0, 0.0)


def _numbered_values(endpoints: tuple[Endpoint | None, ...], label: str) -> tuple[Mapping[str, int], NDArray[np.int64]]:
    """Return a number for each value of the label, and that of each slot; lookup cost does not depend on clients."""
    numbers = {"": 0}
    values = ["" if e is None else e.labels.get(label, "") for e in endpoints]
    return numbers, np.array([numbers.setdefault(value, len(numbers)) for value in values], dtype=np.int64)
