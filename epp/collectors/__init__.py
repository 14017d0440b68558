# SPDX-License-Identifier: Apache-2.0
"""Background collection of data on endpoints into the datastore: polls of their pages, and tags."""

from epp.collectors.limits import PageLimits
from epp.collectors.polling.collector import Collector
from epp.collectors.polling.conditions import Condition, Conditions
from epp.collectors.polling.poll import CollectorObserver
from epp.collectors.tagging import Tagging

__all__ = ["Collector", "CollectorObserver", "Condition", "Conditions", "PageLimits", "Tagging"]
