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
class RolloutLayout:
    """Revisions, roles and pods of all slots, as numbers."""

    revisions: tuple[str, ...]
    """By number, sorted."""
    revision: Positions
    """By slot; NONE without the label."""
    role: Positions
    """By slot; NONE for endpoints that do not count."""
    pod: Positions
    """By slot, for endpoints that count."""
    roles: int
    """Number of roles."""


def lay_out(endpoints: tuple[Endpoint | None, ...], labels: RolloutLabels) -> RolloutLayout:
    """Return the layout of all slots. Endpoints with one UID are ranks of one pod; without, each counts as a pod."""
    number_of_role = {role: number for number, role in enumerate(labels.roles)}
    pods: dict[str, int] = {}
    revision_of, role_of, pod_of = [""] * len(endpoints), [NONE] * len(endpoints), [0] * len(endpoints)
    for slot, endpoint in enumerate(endpoints):
        if endpoint is None:
            continue
        revision_of[slot] = endpoint.labels.get(labels.revision, "")
        role = number_of_role.get(endpoint.labels.get(labels.role, ""), NONE)
        if role != NONE and labels.scope.matches(endpoint.labels):
            role_of[slot] = role
            pod_of[slot] = pods.setdefault(endpoint.uid or f"name:{endpoint.id}", len(pods))
    revisions = tuple(sorted({*revision_of} - {""}))
    numbers = {"": NONE} | {revision: number for number, revision in enumerate(revisions)}
    return RolloutLayout(
        revisions,
        np.array([numbers[revision] for revision in revision_of], dtype=np.intp),
        np.array(role_of, dtype=np.intp),
        np.array(pod_of, dtype=np.intp),
        len(labels.roles),
    )


def pod_counts(layout: RolloutLayout, slots: Positions) -> NDArray[np.intp]:
    """Return the number of pods by revision and role, of the endpoints in these slots."""
    counting = slots[(layout.role[slots] != NONE) & (layout.revision[slots] != NONE)]
    group = layout.revision[counting] * layout.roles + layout.role[counting]
    pods = int(layout.pod.max(initial=0)) + 1
    group_of_pod = np.unique(group * pods + layout.pod[counting]) // pods
    counts = np.bincount(group_of_pod, minlength=len(layout.revisions) * layout.roles)
    return counts.reshape(len(layout.revisions), layout.roles)


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
