# SPDX-License-Identifier: Apache-2.0
"""Parameters of the screener of rollouts."""

import re
from collections import Counter
from collections.abc import Iterable
from typing import Annotated, Literal

from msgspec import Meta

from epp.framework import Name, Parameters
from epp.framework.label_selectors import LabelSelector

_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")


class RolloutScope(Parameters, frozen=True):
    """The pods that are counted."""

    label_selector: Name
    """Label selector, such as `disaggregatedset.x-k8s.io/name=my-set`: endpoints that it matches count for the shares
    of revisions."""

    def __post_init__(self) -> None:
        """Refuse what is no selector."""
        try:
            LabelSelector.parse(self.label_selector)
        except ValueError as error:
            raise ValueError(f"labelSelector: {error}") from None


class HeaderSelector(Parameters, frozen=True):
    """A header and the label that it stands for."""

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
        """Refuse what HTTP has no header of."""
        if not _HEADER_NAME.fullmatch(self.header_name):
            raise ValueError(f"headerName {self.header_name!r} is not the name of a header: write one like x-revision")


class RequiredRoles(Parameters, frozen=True):
    """Roles without which a revision cannot serve."""

    values: Annotated[tuple[Name, ...], Meta(min_length=1)]
    """Values of the role's label."""

    def __post_init__(self) -> None:
        """Refuse a role that is there twice."""
        _refuse_repeated("values", self.values)


class RevisionGating(Parameters, frozen=True):
    """Shares of revisions."""

    mode: Literal["sum", "max-role", "disabled"]
    """Weight of a revision: its pods of all required roles (`sum`), or of the one role that has most pods in all
    (`max-role`); `disabled`: no revision is excluded, and none chosen."""
    revision_label_key: Name = "disaggregatedset.x-k8s.io/revision"
    """Label with the revision."""
    role_label_key: Name = "disaggregatedset.x-k8s.io/role"
    """Label with the role."""
    require_roles: RequiredRoles | None = None
    """Roles of which a revision needs a pod each; required unless the mode is `disabled`."""

    def __post_init__(self) -> None:
        """Refuse gating without roles."""
        if self.mode != "disabled" and self.require_roles is None:
            raise ValueError(
                f"requireRoles is missing: mode {self.mode} needs it; write requireRoles.values, or disabled"
            )

    @property
    def roles(self) -> tuple[str, ...]:
        """The required roles; empty where gating is disabled."""
        return () if self.mode == "disabled" or self.require_roles is None else self.require_roles.values


class RolloutScreenerParameters(Parameters, frozen=True):
    """Scope, headers and gating."""

    scope: RolloutScope
    """The pods that are counted."""
    header_selectors: tuple[HeaderSelector, ...] = ()
    """Headers that stand for labels."""
    revision_gating: RevisionGating = RevisionGating(mode="disabled")
    """Shares of revisions."""

    def __post_init__(self) -> None:
        """Refuse two selectors with one name or one header, and parameters without effect."""
        _refuse_repeated("headerSelectors: name", (each.name for each in self.header_selectors))
        _refuse_repeated("headerSelectors: headerName", (each.header_name.lower() for each in self.header_selectors))
        if not self.header_selectors and not self.revision_gating.roles:
            raise ValueError("neither headerSelectors nor revisionGating has an effect: give one of them")


def _refuse_repeated(what: str, names: Iterable[str]) -> None:
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        raise ValueError(f"{what} {repeated[0]!r} is there twice; remove one")
