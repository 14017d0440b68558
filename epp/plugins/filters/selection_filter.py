"""What filters by bounds on accelerators have in common."""

from collections.abc import Sequence

from epp.framework import Candidates, Filter, Mask, Request
from epp.framework.accelerator_fit import fit_mask, rejection
from epp.framework.accelerator_selection import ACCELERATOR_SELECTION, ANY, Selection
from epp.framework.accelerators import AcceleratorTag
from epp.framework.roles import FP
from epp.framework.snapshot import ACCELERATOR


class SelectionFilter(Filter[FP]):
    """Keeps an endpoint whose accelerator is within this filter's bounds and within those of the request."""

    reads = (ACCELERATOR,)
    may_read = (ACCELERATOR_SELECTION,)
    bounds: Selection = ANY
    """This filter's own."""
    unknown_passes: frozenset[str] = frozenset()
    """The bounds that what is not known passes."""

    @property
    def accelerator_names(self) -> Sequence[str]:
        return (*self.bounds.classes, *sorted(self.bounds.excluded_classes), *self.bounds.models)

    def filter(self, request: Request, candidates: Candidates) -> Mask:
        mask = fit_mask(candidates, self.bounds, self.unknown_passes)
        asked = request.get(ACCELERATOR_SELECTION)
        if asked is not None:
            mask &= fit_mask(candidates, asked.of(candidates.profile), self.unknown_passes)
        return mask

    def rejection(self, request: Request, tag: AcceleratorTag, profile: str = "") -> str | None:
        """Return why this filter drops an endpoint with that accelerator in a profile; None where it does not."""
        reason = rejection(tag, self.bounds, self.unknown_passes)
        asked = request.get(ACCELERATOR_SELECTION)
        if reason is None and asked is not None:
            reason = rejection(tag, asked.of(profile), self.unknown_passes)
        return reason
