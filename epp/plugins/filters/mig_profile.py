"""Keeps endpoints by the MIG slice that they have."""

from typing import Literal

from epp.framework import FilterParameters
from epp.framework.accelerator_requirements import Memory, read_memory, read_profiles, unknown_passes
from epp.framework.accelerator_selection import Selection
from epp.framework.limits import Natural
from epp.plugins.filters.selection_filter import SelectionFilter


class MigProfileFilterParameters(FilterParameters, frozen=True):
    """Which slices."""

    allow: tuple[str, ...] = ()
    """Keep only slices of these MIG profiles, in any spelling: `3g.20gb`, `1g.5gb+me`, `nvidia.com/mig-1g.5gb.me`.
    Whole devices are dropped."""
    deny: tuple[str, ...] = ()
    """Drop slices of these MIG profiles."""
    min_memory: Memory | None = None
    """Least memory of each slice, or device: a quantity such as `20Gi`, or a number of GiB; 3 % less is enough."""
    min_compute_slices: Natural = 0
    """Least compute slices of each slice; a whole device has 7."""
    whole_device_only: bool = False
    """Drop slices, and devices that are shared in any other way."""
    on_unknown: Literal["Pass", "Fail"] = "Fail"
    """What becomes of an endpoint whose slice is not known: `Fail` drops it, `Pass` keeps it."""

    def __post_init__(self) -> None:
        """Refuse what names no profile, and what leaves nobody."""
        self.bounds()
        if self.whole_device_only and self.allow:
            raise ValueError("allow keeps only slices and wholeDeviceOnly drops them: leave one of them out")

    def bounds(self) -> Selection:
        """Return the same as bounds on accelerators; raises ValueError."""
        return Selection(
            mig_profiles=read_profiles("allow", self.allow),
            excluded_mig_profiles=frozenset(read_profiles("deny", self.deny)),
            min_memory_bytes=read_memory("minMemory", self.min_memory) or 0,
            min_compute_slices=self.min_compute_slices,
            whole_device_only=self.whole_device_only,
        )


class MigProfileFilter(SelectionFilter[MigProfileFilterParameters]):
    """Keeps an endpoint if its MIG profile is allowed and not denied, and its slice is large enough.

    Where `accelerator-selection-producer` is configured, its bounds for the request must hold too. Endpoints without an
    accelerator are dropped.
    """

    plugin_type = "mig-profile-filter"

    def setup(self) -> None:
        self.bounds = self.parameters.bounds()
        self.unknown_passes = unknown_passes(self.parameters.on_unknown)
