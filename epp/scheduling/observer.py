"""What the scheduler tells of itself to whoever counts."""


class SchedulingObserver:
    """No-op hooks; override what you want to see."""

    __slots__ = ()

    def scores_rejected(self, plugin: str, count: int) -> None:
        """Tell that so many scores were NaN or infinite and counted as 0."""

    def plugin_failed(self, plugin: str, error: Exception) -> None:
        """Tell that a plugin failed: a scorer lost its vote, a filter or picker its profile, an aggregator headers."""
