"""Fetches an endpoint's metrics page."""

from epp.collectors.http_source import HttpSource, HttpSourceParameters

PROMETHEUS_TEXT = "text/plain;version=0.0.4,text/plain;q=0.5"


class MetricsSourceParameters(HttpSourceParameters, frozen=True):
    """Where the page is, and how to get it."""

    path: str = "/metrics"
    """The page's path; /prometheus/metrics for TensorRT-LLM."""


class MetricsDataSource(HttpSource[MetricsSourceParameters]):
    """Fetches an endpoint's metrics page: at most 8 MiB, no redirects, no cookies, no compression."""

    plugin_type = "metrics-data-source"
    accept = PROMETHEUS_TEXT
