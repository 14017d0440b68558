# SPDX-License-Identifier: Apache-2.0
"""A pool, its outlier memory, and ports that say what a test lets them say."""

from collections import Counter

from epp.framework import Endpoint, ManualClock
from epp.routing.datastore import Datastore
from epp.routing.outliers.outlier_detector import OutlierDetector, OutlierObserver
from epp.routing.outliers.record import Failure, OnVerdict, Verdict
from epp.routing.settings import OutlierSettings

SETTINGS = OutlierSettings(
    consecutive_gateway_failure=3, consecutive_5xx=5, base_ejection_seconds=10, max_ejection_seconds=60
)


class JumpingClock(ManualClock):
    """One that may be set back."""

    def advance(self, seconds: float) -> None:
        self.time += seconds


class World(OutlierObserver):
    def __init__(self, count: int, settings: OutlierSettings = SETTINGS, *, asks: bool = True) -> None:
        self.clock = JumpingClock()
        self.store = Datastore(self.clock)
        self.pool = [Endpoint(f"e{number}", f"10.0.0.{number + 1}", 8000) for number in range(count)]
        self.store.replace(self.pool)
        self.counts: Counter[object] = Counter()
        self.memory = OutlierDetector(self.store, self.clock, settings, observer=self)
        self.questions: list[tuple[Endpoint, OnVerdict]] = []
        if asks:
            self.memory.ask = lambda endpoint, tell: self.questions.append((endpoint, tell))

    @property
    def used(self) -> set[str]:
        """The endpoints that requests may go to."""
        snapshot = self.store.snapshot()
        return {e.name for slot in snapshot.available if (e := snapshot.endpoints.values[slot]) is not None}

    @property
    def ejected(self) -> set[str]:
        return {each.endpoint.name for each in self.memory.ejected}

    def say(self, verdict: Verdict) -> int:
        """Answer all open questions; return how many there were."""
        questions, self.questions = self.questions, []
        for _, tell in questions:
            tell(verdict)
        return len(questions)

    def fail(self, number: int, failure: Failure, times: int = 1) -> None:
        for _ in range(times):
            self.memory.failed(self.pool[number], failure)

    def lose_connections(self, number: int, times: int) -> None:
        """Connections fail one after the other, although the port answers."""
        for _ in range(times):
            self.fail(number, Failure.CONNECTION)
            self.say(Verdict.ANSWERS)

    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.memory.sweep()

    def endpoint_suspected(self, verdict: Verdict) -> None:
        self.counts[verdict] += 1

    def endpoint_ejected(self, cause: Failure) -> None:
        self.counts["ejected", cause] += 1

    def ejection_spared(self, cause: Failure) -> None:
        self.counts["spared", cause] += 1
