# SPDX-License-Identifier: Apache-2.0
"""Background collection of data on endpoints into the datastore: polls of their pages, and tags."""

from epp.pool.collectors.polling.collector import Collector
from epp.pool.collectors.polling.conditions import Condition, Conditions
from epp.pool.collectors.polling.poll import CollectorObserver
from epp.pool.collectors.polling.poller import SharedPages
from epp.pool.collectors.tagging import Tagging

__all__ = ["Collector", "CollectorObserver", "Condition", "Conditions", "SharedPages", "Tagging"]
