# SPDX-License-Identifier: Apache-2.0
"""Filters by the role of an endpoint, deciders, and traffic between the revisions of a DisaggregatedSet."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from epp.framework import (
    PREFIX_MATCH,
    PROMPT_TOKENS,
    Candidates,
    Decider,
    Endpoint,
    Floats,
    Mask,
    Name,
    Natural,
    Parameters,
    Positions,
    ProfileResult,
    Request,
    Response,
    ResponseHeaders,
    Screener,
    Snapshot,
    Stability,
    Tunable,
)
from epp.framework.arrays import everyone
from epp.framework.endpoint import LabelSelector
from epp.framework.flow_control import DECODE_ROLES, ENCODE_ROLES, PREFILL_ROLES, ROLE_LABEL
from epp.framework.plugin_status import PluginMetric, Sample
from epp.plugins.label_filters import LabelValueFilter


class EncodeFilter(LabelValueFilter):
    """Keeps an endpoint if its label `llm-d.ai/role` is encode, encode-prefill or encode-prefill-decode."""

    plugin_type = "encode-filter"
    label = ROLE_LABEL
    values = ENCODE_ROLES


class PrefillFilter(LabelValueFilter):
    """Keeps an endpoint if its label `llm-d.ai/role` includes prefill.

    The values are prefill, encode-prefill, prefill-decode, encode-prefill-decode and both.
    """

    plugin_type = "prefill-filter"
    label = ROLE_LABEL
    values = PREFILL_ROLES


class DecodeFilter(LabelValueFilter):
    """Keeps an endpoint if its label `llm-d.ai/role` includes decode, or if it has no such label.

    The values are decode, prefill-decode, encode-prefill-decode and both.
    """

    plugin_type = "decode-filter"
    label = ROLE_LABEL
    values = DECODE_ROLES
    takes_unlabelled = True


class AlwaysDisaggMultimodalDecider(Decider):
    """Approves requests whose prompt has an image, an audio clip or a video."""

    plugin_type = "always-disagg-multimodal-decider"

    def decide(self, request: Request, decode: ProfileResult | None) -> bool:
        return request.body.media_items > 0


class AlwaysDisaggPDDecider(Decider):
    """Approves every request: each gets a prefill leg, if a suitable endpoint exists."""

    plugin_type = "always-disagg-pd-decider"

    def decide(self, request: Request, decode: ProfileResult | None) -> bool:
        return True


class PrefixBasedPDParameters(Parameters, frozen=True):
    """Minimum work of a prefill leg."""

    non_cached_tokens: Annotated[Natural, Tunable(0, 8_192)] = 0
    """Minimum uncached prompt tokens at the decode endpoint for a prefill leg; 0 for no prefill legs."""
    prompt_tokens: Natural = 0
    """Minimum prompt tokens for a prefill leg, cached or not; 0 for no limit."""
    prefix_match_info_producer_name: str = ""
    """Name of the producer instance whose matches are read; empty for the default one."""


class PrefixBasedPDDecider(Decider[PrefixBasedPDParameters]):
    """Approves requests with `prompt >= promptTokens` and `prompt - matched >= nonCachedTokens`, in tokens.

    `matched` are the tokens that the first target of the decode leg is expected to hold; 0 before the decode leg, and
    without a producer of matches.
    """

    plugin_type = "prefix-based-pd-decider"
    may_read = (PROMPT_TOKENS,)

    def setup(self) -> None:
        self._key = PREFIX_MATCH.produced_by(self.parameters.prefix_match_info_producer_name)
        self.reads = (self._key,)

    @property
    def warnings(self) -> Sequence[str]:
        return () if self.parameters.non_cached_tokens else ("nonCachedTokens is 0: no request gets a prefill leg",)

    def decide(self, request: Request, decode: ProfileResult | None) -> bool:
        prompt, wanted = request.prompt_tokens, self.parameters.non_cached_tokens
        if wanted == 0 or prompt < max(wanted, self.parameters.prompt_tokens):
            return False
        match = request.get(self._key)
        if match is None or decode is None:
            return True
        return prompt - match.tokens_at(decode.slot) >= wanted


_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")


class RolloutScope(Parameters, frozen=True):
    """The pods that are counted."""

    label_selector: Name
    """Label selector of endpoints that count for the shares, such as `disaggregatedset.x-k8s.io/name=my-set`."""

    def __post_init__(self) -> None:
        try:
            LabelSelector.parse(self.label_selector)
        except ValueError as error:
            raise ValueError(f"labelSelector: {error}") from None


class HeaderSelector(Parameters, frozen=True):
    """A header and the label that it selects."""

    name: Name
    """Name in metrics."""
    header_name: Name
    """Header of requests and of responses."""
    label_key: Name
    """Label of endpoints."""
    mode: Literal["strict", "prefer"]
    """`strict`: a request with the header goes only to endpoints whose label has its value. `prefer`: the header is set
    on responses only; a `header-label-affinity-scorer` can prefer such endpoints."""

    def __post_init__(self) -> None:
        if not _HEADER_NAME.fullmatch(self.header_name):
            raise ValueError(
                f"headerName {self.header_name!r} is not a valid header name: write a name such as x-revision"
            )


class RequiredRoles(Parameters, frozen=True):
    """Roles without which a revision cannot serve."""

    values: Annotated[tuple[Name, ...], Meta(min_length=1)]
    """Values of the role's label."""

    def __post_init__(self) -> None:
        _refuse_repeated("values", self.values)


class RevisionGating(Parameters, frozen=True):
    """Shares of revisions."""

    mode: Literal["sum", "max-role", "disabled"]
    """Weight of a revision: its pods of all required roles (`sum`), or of the role with the most pods in total
    (`max-role`). `disabled` neither excludes nor chooses revisions."""
    revision_label_key: Name = "disaggregatedset.x-k8s.io/revision"
    """Label with the revision."""
    role_label_key: Name = "disaggregatedset.x-k8s.io/role"
    """Label with the role."""
    require_roles: RequiredRoles | None = None
    """Roles for which a revision must have a pod; required unless the mode is `disabled`."""

    def __post_init__(self) -> None:
        if self.mode != "disabled" and self.require_roles is None:
            raise ValueError(
                f"requireRoles is missing: mode {self.mode} needs it; add requireRoles.values, or write mode disabled"
            )

    @property
    def roles(self) -> tuple[str, ...]:
        """The required roles; empty if gating is disabled."""
        return () if self.mode == "disabled" or self.require_roles is None else self.require_roles.values


class RolloutScreenerParameters(Parameters, frozen=True):
    """Scope, headers and gating."""

    scope: RolloutScope
    """The pods that are counted."""
    header_selectors: tuple[HeaderSelector, ...] = ()
    """Headers that select labels."""
    revision_gating: RevisionGating = RevisionGating(mode="disabled")
    """Shares of revisions."""

    def __post_init__(self) -> None:
        _refuse_repeated("headerSelectors: name", (each.name for each in self.header_selectors))
        _refuse_repeated("headerSelectors: headerName", (each.header_name.lower() for each in self.header_selectors))
        if not self.header_selectors and not self.revision_gating.roles:
            raise ValueError("neither headerSelectors nor revisionGating has an effect: set one of them")


def _refuse_repeated(what: str, names: Iterable[str]) -> None:
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        raise ValueError(f"{what} {repeated[0]!r} is repeated; remove one")


NONE = -1
"""Number for no revision, and for a role that is not required."""


@dataclass(frozen=True, slots=True)
class RolloutLayout:
    """Revisions, roles and pods of all slots, as numbers."""

    revisions: tuple[str, ...]
    """Names of the revisions, sorted."""
    revision: Positions
    """Number of the revision by slot; NONE without the label."""
    role: Positions
    """Number of the role by slot; NONE for endpoints that do not count."""
    pod: Positions
    """Number of the pod by slot, for endpoints that count."""
    roles: int
    """Number of roles."""


def lay_out(
    endpoints: tuple[Endpoint | None, ...],
    scope: LabelSelector,
    revision_label: str,
    role_label: str,
    roles: tuple[str, ...],
) -> RolloutLayout:
    """Return the layout of all slots. Endpoints with one UID are ranks of one pod; without a UID, each is a pod."""
    number_of_role = {role: number for number, role in enumerate(roles)}
    pods: dict[str, int] = {}
    revision_of, role_of, pod_of = [""] * len(endpoints), [NONE] * len(endpoints), [0] * len(endpoints)
    for slot, endpoint in enumerate(endpoints):
        if endpoint is None:
            continue
        revision_of[slot] = endpoint.labels.get(revision_label, "")
        role = number_of_role.get(endpoint.labels.get(role_label, ""), NONE)
        if role != NONE and scope.matches(endpoint.labels):
            role_of[slot] = role
            pod_of[slot] = pods.setdefault(endpoint.uid or f"name:{endpoint.id}", len(pods))
    revisions = tuple(sorted({*revision_of} - {""}))
    numbers = {"": NONE} | {revision: number for number, revision in enumerate(revisions)}
    return RolloutLayout(
        revisions,
        np.array([numbers[revision] for revision in revision_of], dtype=np.intp),
        np.array(role_of, dtype=np.intp),
        np.array(pod_of, dtype=np.intp),
        len(roles),
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
    """Return the share of each revision; 0 for a revision that lacks a role.

    The weight of a revision is its number of pods: of all roles, or of the role with the most pods in all complete
    revisions (the first such role).
    """
    complete = (counts > 0).all(axis=1)
    if not complete.any():
        return np.zeros(len(counts))
    weights = counts[:, counts[complete].sum(axis=0).argmax()] if by_largest_role else counts.sum(axis=1)
    found: Floats = np.where(complete, weights, 0) / weights[complete].sum()
    return found


_NO_MATCH = PluginMetric(
    "disaggregatedset_strict_header_no_match",
    "Requests with a strict header that no endpoint matches; they were refused.",
    ("selector",),
    is_counter=True,
)
_SHARE = PluginMetric(
    "disaggregatedset_revision_gating_share",
    "Share of requests of a revision, 0..1, at the last request; 0 for a revision that lacks a required role.",
    ("mode", "revision"),
)
_MOST_REVISIONS_SHOWN = 100


class DisaggregatedSetRolloutScreener(Screener[RolloutScreenerParameters], ResponseHeaders[RolloutScreenerParameters]):
    """Keeps the endpoints of one revision, the same for all profiles of a request.

    First, each `strict` selector whose header the request has keeps the endpoints with that label. Then, with
    `revisionGating`, endpoints without a revision are excluded, and so are revisions without a pod of a required role.
    One of the remaining revisions is chosen at random, weighted by its pods: reachable endpoints that match the scope;
    ranks of one pod count once. A request without remaining endpoints is refused with 503. The labels of the serving
    endpoint for all selectors are set as response headers.
    """

    plugin_type = "disaggregatedset-rollout-screener"
    stability = Stability.ALPHA
    metrics = (_NO_MATCH, _SHARE)

    def setup(self) -> None:
        gating = self.parameters.revision_gating
        scope = LabelSelector.parse(self.parameters.scope.label_selector)
        self._roles = gating.roles
        self._labels = (scope, gating.revision_label_key, gating.role_label_key, gating.roles)
        selectors = self.parameters.header_selectors
        self._strict = [
            (each.name, each.header_name.lower(), each.label_key) for each in selectors if each.mode == "strict"
        ]
        self._response_labels = [(each.header_name.lower(), each.label_key) for each in selectors]
        self._no_match = {name: 0 for name, _, _ in self._strict}
        self._shares: tuple[RolloutLayout, Positions, Floats] | None = None
        """The layout, the available slots, and the shares by revision, with a last entry of 0 for no revision."""

    def screen(self, request: Request, candidates: Candidates) -> Mask:
        if not self._roles:
            return self._match_strict_headers(request, candidates, everyone(len(candidates)))
        layout, by_revision = self._shares_of(candidates.snapshot)
        revisions = layout.revision[candidates.slots]
        kept = self._match_strict_headers(request, candidates, by_revision[revisions] > 0)
        if kept.any():
            left = np.unique(revisions[kept])
            cumulative = by_revision[left].cumsum()
            drawn = request.uniform(f"{self.plugin_type}/{self.name}") * cumulative[-1]
            kept &= revisions == left[min(int(cumulative.searchsorted(drawn, side="right")), len(left) - 1)]
        return kept

    def response_headers(self, request: Request, response: Response) -> Mapping[str, str]:
        values = ((header, response.served.labels.get(key, "")) for header, key in self._response_labels)
        return {header: value for header, value in values if value and value.isascii() and value.isprintable()}

    @property
    def samples(self) -> Sequence[Sample]:
        counts = [Sample(_NO_MATCH, count, (name,)) for name, count in self._no_match.items()]
        if self._shares is None:
            return counts
        layout, _, by_revision = self._shares
        mode = self.parameters.revision_gating.mode
        largest = sorted(zip(layout.revisions, by_revision.tolist(), strict=False), key=lambda each: -each[1])
        return counts + [Sample(_SHARE, share, (mode, name)) for name, share in largest[:_MOST_REVISIONS_SHOWN]]

    def _match_strict_headers(self, request: Request, candidates: Candidates, kept: Mask) -> Mask:
        """Return the kept endpoints that match all strict headers of the request."""
        for name, header, key in self._strict:
            wanted = request.headers.get(header)
            if wanted and kept.any():
                kept = kept & candidates.where_label_is(key, wanted)
                self._no_match[name] += not kept.any() and not request.dry_run
        return kept

    def _shares_of(self, snapshot: Snapshot) -> tuple[RolloutLayout, Floats]:
        """Return the revisions and their shares, computed once for each set of endpoints."""
        layout = snapshot.endpoints.derive(lay_out, *self._labels)
        if self._shares is not None and self._shares[0] is layout and self._shares[1] is snapshot.available:
            return layout, self._shares[2]
        by_largest_role = self.parameters.revision_gating.mode == "max-role"
        found = np.append(shares(pod_counts(layout, snapshot.available), by_largest_role=by_largest_role), 0.0)
        if not snapshot.dry_run:
            self._shares = layout, snapshot.available, found
        return layout, found
