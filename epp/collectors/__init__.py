"""What is said of endpoints, by themselves and beside them: fetched in the background, read into the datastore."""

from epp.collectors.collector import Collector
from epp.collectors.core_metrics import CoreMetricsExtractor
from epp.collectors.dcgm import DcgmDataSource, DcgmExtractor
from epp.collectors.metrics_source import MetricsDataSource
from epp.collectors.models import ModelsDataExtractor, ModelsDataSource
from epp.collectors.observer import CollectorObserver
from epp.collectors.tagging import Tagging

__all__ = [
    "Collector",
    "CollectorObserver",
    "CoreMetricsExtractor",
    "DcgmDataSource",
    "DcgmExtractor",
    "MetricsDataSource",
    "ModelsDataExtractor",
    "ModelsDataSource",
    "Tagging",
]
