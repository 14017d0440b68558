# SPDX-License-Identifier: Apache-2.0
"""Facts from the labels of a node: one module for each vendor or cloud."""

from epp.hardware.labels.node import NodeFacts, facts_from_labels
from epp.hardware.labels.reading import INSTANCE_TYPE_LABELS, spot_from_labels, with_label_aliases

__all__ = ["INSTANCE_TYPE_LABELS", "NodeFacts", "facts_from_labels", "spot_from_labels", "with_label_aliases"]
