"""What endpoints say of themselves: pages fetched in the background, read into the datastore's columns."""

from epp.collectors.collector import Collector
from epp.collectors.core_metrics import CoreMetricsExtractor
from epp.collectors.metrics_source import MetricsDataSource
from epp.collectors.observer import CollectorObserver

__all__ = ["Collector", "CollectorObserver", "CoreMetricsExtractor", "MetricsDataSource"]
