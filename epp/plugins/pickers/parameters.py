"""The one parameter that all pickers share."""

from epp.framework import Parameters


class PickerParameters(Parameters, frozen=True):
    """How many endpoints a picker returns."""

    max_num_of_endpoints: int = 1
    """The target plus the fallbacks that the gateway tries in order; fewer when there are fewer candidates."""

    def __post_init__(self) -> None:
        """Refuse a picker that picks nobody."""
        if self.max_num_of_endpoints < 1:
            raise ValueError(f"maxNumOfEndpoints is {self.max_num_of_endpoints}; it must be at least 1")
