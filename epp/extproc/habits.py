"""What a gateway that does not say its modes has shown of itself, stream by stream."""


class Habits:
    """One for each gateway, shared by its streams."""

    __slots__ = ("sends_unasked",)

    def __init__(self) -> None:
        self.sends_unasked = False
        """Whether it has ever sent a body before its headers were answered: then it never waits for that answer, and a
        body that is late is only late."""
