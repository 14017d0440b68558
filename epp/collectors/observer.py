"""Who is told when a feed goes wrong."""


class CollectorObserver:
    """Is told of every error; does nothing with it unless overridden."""

    __slots__ = ()

    def poll_error(self, source_type: str) -> None:
        """Take note that a source brought no page."""

    def extract_error(self, source_type: str, extractor_type: str) -> None:
        """Take note that an extractor could not read a page."""
