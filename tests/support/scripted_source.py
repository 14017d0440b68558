# SPDX-License-Identifier: Apache-2.0
"""A source that answers as a test says, and what a test looks at afterwards."""

from epp.framework import Endpoint
from epp.framework.datalayer import DataSource, Extractor, Report
from epp.framework.snapshot import RUNNING, WAITING
from epp.pool.collectors.polling.poll import CollectorObserver, Poll
from epp.routing.datastore import Datastore

PAGE = b"vllm:num_requests_waiting 3\n"


class Script(DataSource):
    """Answers from a list: pages are returned, errors raised."""

    plugin_type = "script"

    port = None
    interval_seconds = None

    def __init__(
        self, *answers: bytes | Exception, port: int | None = None, interval_seconds: float | None = None
    ) -> None:
        super().__init__()
        self.answers = list(answers)
        self.asked: list[Endpoint] = []
        self.port = port
        self.interval_seconds = interval_seconds

    async def fetch(self, endpoint: Endpoint) -> bytes:
        self.asked.append(endpoint)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def close(self) -> None:
        pass


class Counting(Script):
    """Answers at once, for ever."""

    async def fetch(self, endpoint: Endpoint) -> bytes:
        self.asked.append(endpoint)
        return PAGE


class Length(Extractor):
    """Reports the length of the page as running requests."""

    plugin_type = "length"
    writes = (RUNNING,)

    def extract(self, page: bytes, endpoint: Endpoint) -> Report:
        return Report({RUNNING: len(page)})


class Errors(CollectorObserver):
    def __init__(self) -> None:
        self.seen: list[tuple[str, ...]] = []

    def poll_error(self, source_type: str) -> None:
        self.seen.append((source_type,))

    def extract_error(self, source_type: str, extractor_type: str) -> None:
        self.seen.append((source_type, extractor_type))


def value(store: Datastore, column=WAITING, slot: int = 0) -> float:
    return float(store.snapshot().column(column)[slot])


async def collect_once(poll: Poll, endpoint: Endpoint, delay_seconds: float = 0.0) -> float:
    """Fetch a page and settle the outcome."""
    outcome: bytes | Exception
    try:
        outcome = await poll.feed.source.fetch(endpoint)
    except Exception as error:  # noqa: BLE001  any error is an outcome
        outcome = error
    return poll.settle(endpoint, outcome, delay_seconds)
