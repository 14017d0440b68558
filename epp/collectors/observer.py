"""Events of collectors, for metrics."""

from epp.supervisor import TaskObserver


class CollectorObserver(TaskObserver):
    """No-op callbacks; override those of interest."""

    __slots__ = ()

    def poll_error(self, source_type: str) -> None:
        """Record that a page could not be fetched."""

    def extract_error(self, source_type: str, extractor_type: str) -> None:
        """Record that an extractor could not read a page."""
