"""The former name of the label selector filter."""

from epp.framework import Stability
from epp.plugins.filters.label_selector import LabelSelectorFilter


class ByLabelSelectorFilter(LabelSelectorFilter):
    """Keeps an endpoint if it has every label in `matchLabels` and meets every entry of `matchExpressions`.

    Deprecated: the former name of `label-selector-filter`.
    """

    plugin_type = "by-label-selector"
    stability = Stability.DEPRECATED
