# SPDX-License-Identifier: Apache-2.0
"""Revisions of a disaggregated deployment, and the share of requests that each can take."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from epp.framework import Endpoint, Floats, Positions
from epp.framework.label_selectors import LabelSelector

NONE = -1
"""Number of no revision, and of a role that does not count."""


class RolloutLabels(NamedTuple):
    """What is read of endpoints."""

    scope: LabelSelector
    """Endpoints that count."""
    revision: str
    """Label with the revision."""
    role: str
    """Label with the role."""
    roles: tuple[str, ...]
    """Roles that count."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Revisions, roles and pods of all slots, as numbers."""

    revisions: tuple[str, ...]
    """By number, sorted."""
    revision: Positions
    """By slot; NONE without the label."""
    role: Positions
    """By slot; NONE for endpoints that do not count."""
    pod: Positions
    """By slot."""
    roles: int
    """Number of roles."""


def lay_out(endpoints: tuple[Endpoint | None, ...], labels: RolloutLabels) -> Layout:
    """Return the layout of all slots. Endpoints with one UID are ranks of one pod; without, each counts as a pod."""
    found = [endpoint.labels.get(labels.revision, "") if endpoint else "" for endpoint in endpoints]
    revisions = tuple(sorted(set(filter(None, found))))
    numbers = {revision: number for number, revision in enumerate(revisions)}
    roles = {role: number for number, role in enumerate(labels.roles)}
    pods: dict[str, int] = {}
    counted = [
        NONE
        if endpoint is None or not labels.scope.matches(endpoint.labels)
        else roles.get(endpoint.labels.get(labels.role, ""), NONE)
        for endpoint in endpoints
    ]
    pod = [0 if e is None else pods.setdefault(e.uid or f"name:{e.id}", len(pods)) for e in endpoints]
    return Layout(
        revisions,
        np.array([numbers.get(revision, NONE) for revision in found], dtype=np.intp),
        np.array(counted, dtype=np.intp),
        np.array(pod, dtype=np.intp),
        len(labels.roles),
    )


def pod_counts(layout: Layout, slots: Positions) -> NDArray[np.intp]:
    """Return the number of pods by revision and role, of the endpoints in these slots."""
    counts = np.zeros((len(layout.revisions), layout.roles), dtype=np.intp)
    counting = slots[(layout.role[slots] != NONE) & (layout.revision[slots] != NONE)]
    ranks = np.stack([layout.revision[counting], layout.role[counting], layout.pod[counting]])
    revision, role, _ = np.unique(ranks, axis=1)
    np.add.at(counts, (revision, role), 1)
    return counts


def shares(counts: NDArray[np.intp], *, by_largest_role: bool) -> Floats:
    """Return the share of each revision, 0 for one that lacks a role.

    A revision weighs as much as it has pods: of all roles, or of the role with most pods in all revisions that lack
    none, of several such the first.
    """
    complete = (counts > 0).all(axis=1)
    if not complete.any():
        return np.zeros(len(counts))
    weights = counts[:, counts[complete].sum(axis=0).argmax()] if by_largest_role else counts.sum(axis=1)
    found: Floats = np.where(complete, weights, 0) / weights[complete].sum()
    return found
