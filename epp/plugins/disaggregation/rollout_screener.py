# SPDX-License-Identifier: Apache-2.0
"""Keeps every request within one revision of a disaggregated deployment while a new one is rolled out."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from epp.framework import (
    Candidates,
    Floats,
    Mask,
    Positions,
    Request,
    Response,
    ResponseHeaders,
    Screener,
    Snapshot,
    Stability,
)
from epp.framework.label_selectors import LabelSelector
from epp.framework.plugin_status import PluginMetric, Sample
from epp.plugins.disaggregation.rollout_parameters import RolloutScreenerParameters
from epp.plugins.disaggregation.rollout_shares import RolloutLabels, RolloutLayout, lay_out, pod_counts, shares

_NO_MATCH = PluginMetric(
    "disaggregatedset_strict_header_no_match",
    "Requests with a strict header that no endpoint matches; they were refused.",
    ("selector",),
    is_counter=True,
)
_SHARE = PluginMetric(
    "disaggregatedset_revision_gating_share",
    "Share of requests of a revision, 0..1, at the last request; 0 for one that lacks a required role.",
    ("mode", "revision"),
)
_MOST_REVISIONS_SHOWN = 100


class _Shares(NamedTuple):
    """Shares of revisions, and what they were computed of."""

    layout: RolloutLayout
    available: Positions
    by_revision: Floats
    """By number; one more for no revision, 0."""


class DisaggregatedSetRolloutScreener(Screener[RolloutScreenerParameters], ResponseHeaders[RolloutScreenerParameters]):
    """Keeps the endpoints of one revision, the same for all profiles of a request.

    With `revisionGating`, endpoints are excluded whose revision has no pod of a required role, and so are those without
    a revision, in the scope or not. Of the revisions that are left one is chosen at random, weighted by its pods:
    endpoints of the pool that match the scope and can be reached, with several ranks of one pod counted once. Before
    that, each `strict` selector whose header the request has keeps the endpoints with that label. A request that is
    left without endpoints is refused with 503. Of the endpoint that serves, the labels of all selectors are set as
    response headers.
    """

    plugin_type = "disaggregatedset-rollout-screener"
    stability = Stability.ALPHA
    metrics = (_NO_MATCH, _SHARE)

    def setup(self) -> None:
        gating = self.parameters.revision_gating
        scope = LabelSelector.parse(self.parameters.scope.label_selector)
        self._labels = RolloutLabels(scope, gating.revision_label_key, gating.role_label_key, gating.roles)
        selectors = self.parameters.header_selectors
        self._strict = [
            (each.name, each.header_name.lower(), each.label_key) for each in selectors if each.mode == "strict"
        ]
        self._stamped = [(each.header_name.lower(), each.label_key) for each in selectors]
        self._no_match = {name: 0 for name, _, _ in self._strict}
        self._shares: _Shares | None = None

    def screen(self, request: Request, candidates: Candidates) -> Mask:
        if not self._labels.roles:
            return self._with_strict_headers(request, candidates, np.ones(len(candidates), dtype=np.bool_))
        found = self._shares_of(candidates.snapshot)
        revisions = found.layout.revision[candidates.slots]
        kept = self._with_strict_headers(request, candidates, found.by_revision[revisions] > 0)
        if kept.any():
            left = np.unique(revisions[kept])
            up_to = found.by_revision[left].cumsum()
            drawn = request.uniform(f"{self.plugin_type}/{self.name}") * up_to[-1]
            kept &= revisions == left[min(int(up_to.searchsorted(drawn, side="right")), len(left) - 1)]
        return kept

    def response_headers(self, request: Request, response: Response) -> Mapping[str, str]:  # noqa: ARG002
        values = ((header, response.served.labels.get(key, "")) for header, key in self._stamped)
        return {header: value for header, value in values if value and value.isascii() and value.isprintable()}

    @property
    def samples(self) -> Sequence[Sample]:
        counts = [Sample(_NO_MATCH, count, (name,)) for name, count in self._no_match.items()]
        found = self._shares
        if found is None:
            return counts
        mode = self.parameters.revision_gating.mode
        largest = sorted(
            zip(found.layout.revisions, found.by_revision.tolist(), strict=False), key=lambda each: -each[1]
        )
        return counts + [Sample(_SHARE, share, (mode, name)) for name, share in largest[:_MOST_REVISIONS_SHOWN]]

    def _with_strict_headers(self, request: Request, candidates: Candidates, kept: Mask) -> Mask:
        """Return those of the kept endpoints that all strict headers of the request match."""
        for name, header, key in self._strict:
            wanted = request.headers.get(header)
            if wanted and kept.any():
                kept = kept & candidates.where_label_is(key, wanted)
                self._no_match[name] += not kept.any() and not request.dry_run
        return kept

    def _shares_of(self, snapshot: Snapshot) -> _Shares:
        """Return the shares of revisions, computed once for as long as no endpoint comes, leaves or changes."""
        layout = snapshot.endpoints.derive(lay_out, self._labels)
        before = self._shares
        if before is not None and before.layout is layout and before.available is snapshot.available:
            return before
        by_largest_role = self.parameters.revision_gating.mode == "max-role"
        by_revision = shares(pod_counts(layout, snapshot.available), by_largest_role=by_largest_role)
        found = _Shares(layout, snapshot.available, np.append(by_revision, 0.0))
        if not snapshot.dry_run:
            self._shares = found
        return found
