# SPDX-License-Identifier: Apache-2.0
"""Client of prediction and training servers: shared calls, a circuit breaker for each server, and limits."""

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Self

import msgspec
import structlog

from epp.framework.arrays import Floats
from epp.framework.messages import without_credentials
from epp.framework.plugin_status import InputProblem, PluginMetric, Sample
from epp.kube.objects.ocm import is_url
from epp.pool.breaker import Breaker
from epp.pool.collectors.dynamic_scores.scorer import FetchError
from epp.pool.predicted_latency.messages import AnswerError, Row, TrainingBuffer, read_answer, read_status
from epp.runtime.supervisor import first_of

if TYPE_CHECKING:
    from epp.pool.collectors.dynamic_scores.fetching import Fetcher

_MOST_SERVERS = 16
_MOST_ROWS = 1000
"""Most rows of one call if the settings have no limit: decoding them takes about a millisecond."""
_MOST_FAILURES = 3
"""Consecutive failed calls after which a server is not called."""
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 30.0
"""Seconds between two checks of a server that is not ready."""

READY = PluginMetric("latency_server_ready", "1 while a prediction server is used, 0 while it fails.", ("server",))
FAILED = PluginMetric(
    "latency_server_failures",
    "Requests whose predictions came from rates although there is a prediction server, by reason.",
    ("reason",),
    is_counter=True,
)
TRAINED = PluginMetric("latency_training_entries", "Training entries, by result.", ("result",), is_counter=True)

_log = structlog.get_logger()


class ServerSettings(msgspec.Struct, frozen=True):
    """Environment variables, as llm-d's charts set them."""

    prediction_urls: tuple[str, ...]
    training_url: str
    """Empty for none."""
    max_sample_size: int
    """Most training entries of one transfer."""
    flush_seconds: int
    """Time between two transfers."""
    status_seconds: int
    """Time between two status checks of a server that is ready."""
    http_seconds: int
    """Time limit of transfers and status checks."""
    max_bulk_size: int
    """Most endpoints of one request."""
    window_ms: int
    """Time for which requests are collected in a shared call; 0 for a separate call per request."""
    max_rows: int
    """Number of rows from which a shared call is sent without waiting."""
    max_calls: int
    """Most concurrent calls."""

    @classmethod
    def of(cls, variables: Mapping[str, str]) -> Self | None:
        """Return the settings; None without a server. Raises ValueError for a variable that cannot be read."""
        urls = [url.strip().rstrip("/") for url in variables.get("PREDICTION_SERVER_URL", "").split(",")]
        found = tuple(dict.fromkeys(url for url in urls if url))
        training = variables.get("TRAINING_SERVER_URL", "").strip().rstrip("/")
        for url in (*found, training):
            if url and not is_url(url):
                shown = f"{without_credentials(url)!r:.80}"
                raise ValueError(f"{shown} in the environment is not the URL of a server: write http://host:port")
        if len(found) > _MOST_SERVERS:
            raise ValueError(f"PREDICTION_SERVER_URL has {len(found)} servers: write at most {_MOST_SERVERS}")
        if not found and not training:
            return None

        def number(name: str, default: int, least: int = 1, most: int = 1_000_000) -> int:
            text = variables.get(name, "").strip()
            if not text:
                return default
            if not text.isdecimal() or not least <= int(text) <= most:
                raise ValueError(f"{name} is {text!r:.40}: write a whole number from {least} to {most}")
            return int(text)

        return cls(
            found,
            training,
            max_sample_size=number("LATENCY_MAX_SAMPLE_SIZE", 1000, most=10_000),
            flush_seconds=number("LATENCY_FLUSH_INTERVAL_SEC", 1),
            status_seconds=number("LATENCY_METRICS_INTERVAL_SEC", 60),
            http_seconds=number("LATENCY_HTTP_TIMEOUT_SEC", 10),
            max_bulk_size=number("LATENCY_MAX_BULK_SIZE", 100, most=100),
            window_ms=number("LATENCY_COALESCE_WINDOW_MS", 1, least=0, most=1000),
            max_rows=number("LATENCY_MAX_COALESCED_ROWS", 0, least=0) or _MOST_ROWS,
            max_calls=number("LATENCY_MAX_CONCURRENT_DISPATCHES", 36, most=1000),
        )


class _Server:
    """A prediction server, which is used from a good status until its calls fail."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.name = without_credentials(url)
        self.model = ""
        self.broke = asyncio.Event()
        self.breaker = Breaker(_MOST_FAILURES, self._changed, is_closed=False)

    def _changed(self) -> None:
        if self.breaker.is_closed:
            _log.info("prediction server is used", server=self.name, model=self.model)
            return
        self.broke.set()
        _log.warning(
            "prediction server is not used: latencies are predicted from the rates of endpoints",
            server=self.name,
            reason=self.breaker.problem,
        )


class _Call:
    """Rows of several requests in one call."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.times: asyncio.Future[Floats | None] = asyncio.get_running_loop().create_future()
        """None if the call fails."""


class PredictionClient:
    """Requests predictions and transfers training entries while `run` runs.

    A request waits for the shared call that contains its rows, at most for the time limit. A server that fails three
    times in a row is not called until its status is good again.
    """

    def __init__(self, settings: ServerSettings, *, limit_seconds: float) -> None:
        self.settings = settings
        self._limit_seconds = limit_seconds
        self._servers = tuple(_Server(url) for url in settings.prediction_urls)
        self.buffer = TrainingBuffer(settings.max_sample_size)
        """Entries for the next transfer."""
        self._fetcher: Fetcher | None = None
        self._call: _Call | None = None
        self._calls: set[asyncio.Task[None]] = set()
        self._failed: Counter[str] = Counter()
        self._trained = {"sent": 0, "left out": 0, "lost": 0}
        self._is_training = True

    @property
    def samples(self) -> Sequence[Sample]:
        return [
            *(Sample(READY, float(server.breaker.is_closed), (server.name,)) for server in self._servers),
            *(Sample(FAILED, count, (reason,)) for reason, count in [*self._failed.items()]),
            *(Sample(TRAINED, count, (result,)) for result, count in self._trained.items()),
        ]

    @property
    def problems(self) -> tuple[InputProblem, ...]:
        return tuple(
            InputProblem(server.name, reason=f"not used for predictions: {server.breaker.problem}")
            for server in self._servers
            if server.breaker.problem
        )

    def takes(self, rows: int) -> bool:
        """Return whether predictions for this number of rows can be requested now; count refused requests."""
        if not self._servers:
            return False
        reason = ""
        if self._fetcher is None or not any(server.breaker.is_closed for server in self._servers):
            reason = "not ready"
        elif rows > self.settings.max_bulk_size:
            reason = "too many endpoints"
        elif len(self._calls) >= self.settings.max_calls:
            reason = "too many calls"
        if reason:
            self._failed[reason] += 1
        return not reason

    async def predict(self, rows: Sequence[Row]) -> Floats | None:
        """Return the times in seconds of each row, as `read_answer`; None without an answer."""
        if self._call is not None and len(self._call.rows) + len(rows) > self.settings.max_rows:
            self._send()
        if self._call is None:
            self._call = _Call()
            if self.settings.window_ms:
                asyncio.get_running_loop().call_later(self.settings.window_ms / 1e3, self._send, self._call)
        call, first = self._call, len(self._call.rows)
        call.rows += rows
        if not self.settings.window_ms or len(call.rows) >= self.settings.max_rows:
            self._send()
        times: Floats | None = None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._limit_seconds):
                times = await asyncio.shield(call.times)
        if times is None:
            self._failed["no answer"] += 1
            return None
        return times[first : first + len(rows)]

    async def run(self) -> None:
        """Watch the servers and transfer training entries until cancelled."""
        from epp.pool.collectors.dynamic_scores.fetching import Fetcher  # noqa: PLC0415  `epp check` uses no network

        settings = self.settings
        try:
            async with (
                Fetcher(timeout_seconds=self._limit_seconds, connections=settings.max_calls) as self._fetcher,
                Fetcher(timeout_seconds=settings.http_seconds) as patient,
                asyncio.TaskGroup() as tasks,
            ):
                for server in self._servers:
                    tasks.create_task(self._watch(server, patient))
                if settings.training_url:
                    tasks.create_task(self._train(patient))
        finally:
            self._fetcher = None
            if self._call is not None:
                self._call.times.set_result(None)
                self._call = None
            for call in self._calls:
                call.cancel()

    def _send(self, due: _Call | None = None) -> None:
        """Send the call that is being collected; do nothing if the `due` call was sent already."""
        call = self._call
        if call is None or (due is not None and due is not call):
            return
        self._call = None
        task = asyncio.get_running_loop().create_task(self._ask(call))
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)

    async def _ask(self, call: _Call) -> None:
        ready = [server for server in self._servers if server.breaker.is_closed]
        times = None
        try:
            if ready and self._fetcher is not None:
                server = random.choice(ready)  # noqa: S311  spreads calls, guards nothing
                try:
                    body = await self._fetcher.post(
                        f"{server.url}/predict/bulk/strict", msgspec.json.encode({"requests": call.rows})
                    )
                    times = read_answer(body, len(call.rows))
                    server.breaker.succeeded()
                except (FetchError, AnswerError) as error:
                    server.breaker.failed(str(error))
        finally:
            call.times.set_result(times)

    async def _watch(self, server: _Server, client: "Fetcher") -> None:
        """Check the status of a server: periodically, and soon after failed calls."""
        pause = _FIRST_PAUSE
        while True:
            server.broke.clear()
            try:
                status = read_status(await client.get(f"{server.url}/status"))
                server.model = status.model_type
                if status.is_ready:
                    server.breaker.succeeded()
                else:
                    server.breaker.failed("has no model yet", _MOST_FAILURES)
            except (FetchError, AnswerError) as error:
                server.breaker.failed(str(error), _MOST_FAILURES)
            if server.breaker.is_closed:
                await first_of(server.broke.wait(), most_seconds=self.settings.status_seconds)
            if server.breaker.is_closed:
                pause = _FIRST_PAUSE
            else:
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)

    async def _train(self, client: "Fetcher") -> None:
        url = f"{self.settings.training_url}/add_training_data_bulk"
        while True:
            await asyncio.sleep(self.settings.flush_seconds)
            entries, left_out = self.buffer.take()
            self._trained["left out"] += left_out
            if not entries:
                continue
            try:
                await client.post(url, msgspec.json.encode({"entries": entries}))
            except FetchError as error:
                self._trained["lost"] += len(entries)
                if self._is_training:
                    _log.warning("training entries are lost", server=without_credentials(url), reason=str(error))
                self._is_training = False
            else:
                self._trained["sent"] += len(entries)
                self._is_training = True
