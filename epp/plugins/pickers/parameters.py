"""The one parameter that all pickers share."""

from epp.framework import Parameters
from epp.framework.limits import Count


class PickerParameters(Parameters, frozen=True):
    """How many endpoints a picker returns."""

    max_num_of_endpoints: Count = 1
    """The target plus the fallbacks that the gateway tries in order; fewer when there are fewer candidates."""
