# SPDX-License-Identifier: Apache-2.0
"""The metrics of all processes of a picker as one page: counters as sums that never fall, and gauges by rules."""

import asyncio
import pickle
import time
import zlib
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from math import isfinite
from operator import add, gt, itemgetter
from types import SimpleNamespace
from typing import NamedTuple, TypeAlias, cast

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector, CollectorRegistry, RestrictedRegistry
from prometheus_client.samples import Sample

from epp.sharing.channel import Channel
from epp.sharing.healthz import Processes, ask
from epp.telemetry.families import Computed, Samples
from epp.telemetry.rendering import Pace, no_collection, paced

CALL = "metrics"
"""Call that a worker answers with `packed_metrics` of its registry."""
_PATIENCE_SECONDS = 3.0
"""Time for which a page waits for workers: 35,000 samples take half a second, and pauses of twice that time."""
_LATE_SECONDS = 30.0
"""Time limit for a late answer of a worker, which the next page shows."""
_PAUSE_SECONDS = 0.0002
"""Pause while series are added; rendering the page has longer ones."""
_CHUNK = 1024
"""Numbers and labels that are packed at a time: the event loop is blocked for a fraction of a millisecond."""
_MOST_ENDED = 20_000
"""Numbers of one metric that are kept for series that no process has any more."""
_SCALE = 2**20
"""Counters are added as integers, in units of about a millionth. A rounded sum of fractions could decrease, and
Prometheus would treat that as a reset of the counter."""

_SUMMED = frozenset(
    {
        "inference_extension_flow_control_queue_bytes",
        "inference_extension_flow_control_queue_size",
        "inference_objective_running_requests",
        "llm_d_epp_budget_limit",
        "llm_d_epp_budget_used",
        "llm_d_epp_extproc_streams_inflight",
        "llm_d_epp_flow_control_pending_reclaim",
        "llm_d_epp_flow_control_queue_bytes",
        "llm_d_epp_flow_control_queue_size",
        "llm_d_epp_inflight_requests",
        "llm_d_epp_inflight_tokens",
        "llm_d_epp_kv_cache_shared_index_waiting_blocks",
        "llm_d_epp_program_aware_attained_service_tokens",
        "llm_d_epp_prompt_token_cache_bytes",
        "llm_d_epp_request_running",
        "llm_d_epp_shadow_queue_size",
        "process_max_fds",
        "process_open_fds",
        "process_resident_memory_bytes",
        "process_virtual_memory_bytes",
    }
)
"""Gauges of resources that each process has, which are summed."""
_HIGHEST = frozenset(
    {
        "inference_extension_prefix_indexer_size",
        "inference_objective_inference_request_metric",
        "llm_d_epp_flow_control_capacity_utilization_bytes",
        "llm_d_epp_flow_control_capacity_utilization_requests",
        "llm_d_epp_flow_control_global_capacity_utilization_bytes",
        "llm_d_epp_flow_control_global_capacity_utilization_requests",
        "llm_d_epp_flow_control_reclaim_target",
        "llm_d_epp_input_objects_kept",
        "llm_d_epp_input_problems",
        "llm_d_epp_input_values_ignored",
        "llm_d_epp_outlier_detection_ejections_active",
        "llm_d_epp_quota_alert",
        "llm_d_epp_quota_used",
        "llm_d_epp_shadow_disabled",
        "llm_d_epp_snapshot_age_seconds",
    }
)
"""Gauges whose highest value is shown; this is also the default for gauges of plugins."""
_LOWEST = frozenset(
    {
        "llm_d_epp_config_last_reload_successful",
        "llm_d_epp_latency_server_ready",
        "llm_d_epp_program_aware_jains_fairness_index",
    }
)
_OF_MAIN = frozenset(
    {
        "inference_pool_per_pod_queue_size",
        "llm_d_epp_config_reloads",
        "llm_d_epp_dynamic_scorer_age_seconds",
        "llm_d_epp_dynamic_scorer_health",
        "llm_d_epp_dynamic_scorer_results",
        "llm_d_epp_endpoint_up",
        "llm_d_epp_input_versions_rejected",
        "llm_d_epp_per_endpoint_queue_size",
        "process_network_receive_bytes",
        "process_network_transmit_bytes",
    }
)
"""Metrics that workers do not send: large metrics of the pool, metrics of pollers, which only the main process has, and
counters of events that each process counts. All other gauges show the value of the main process, if it has one."""
_OF_WORKERS = frozenset({"llm_d_epp_budget_limit"})
"""Summed gauges that leave out the main process, since it routes no requests."""
_OF_PLUGINS = "plugin_type"
_COUNTED = frozenset({"counter", "histogram"})
_BUCKET = "le"
_LEVEL = 1

Labels: TypeAlias = tuple[str, ...]
Numbers: TypeAlias = tuple[float, ...]


class Shape(NamedTuple):
    """Common properties of all series of a metric."""

    text: str
    kind: str
    labels: tuple[str, ...]
    """Label names of a series, except `le`."""
    columns: tuple[tuple[str, str], ...]
    """Name and bucket of each sample of a series; an empty bucket means none."""
    has_created: bool
    """Whether the last number is the time at which a series was created."""

    @property
    def is_counted(self) -> bool:
        """Whether numbers are counts, in units of 1 / _SCALE; other metrics are gauges."""
        return self.kind in _COUNTED

    def sum(self, one: Numbers | None, other: Numbers) -> Numbers:
        """Return the sum of two series; the second alone if the first is None."""
        if one is None:
            return other
        together = tuple(map(add, one, other))
        return (*together[:-1], min(one[-1], other[-1])) if self.has_created else together

    def began_again(self, before: Numbers, now: Numbers) -> bool:
        """Return whether a series was removed, and a new series with the same labels was added."""
        return any(map(gt, before, now)) or (self.has_created and before[-1] != now[-1])


Row: TypeAlias = tuple[Labels, Numbers]
Packed: TypeAlias = tuple[Shape, Sequence[bytes]]
"""A metric and its series, in chunks of bytes: freeing so many objects would block all threads."""
Page: TypeAlias = Mapping[str, Packed]
"""The metrics of a process, by name."""
Process: TypeAlias = Channel | None
"""The channel to a worker; None for the main process."""
Change: TypeAlias = tuple[Process, Packed | None, Packed | None]
"""A process, and one of its metrics: on the last page, and now."""


async def packed_metrics(registry: Collector) -> Page:
    """Return the metrics of a worker, collected in a thread, with pauses."""
    return await asyncio.to_thread(packed, registry, without=_OF_MAIN)


def packed(registry: Collector, *, without: Container[str] = ()) -> dict[str, Packed]:
    """Return the metrics of a process `without` some; called in a thread."""
    with no_collection():
        made = ((metric.name, _packed(metric)) for metric in paced(registry) if metric.name not in without)
        return {name: each for name, each in made if each is not None}


def _packed(metric: Metric) -> Packed | None:
    """Return a metric with its series; None if it has no series."""
    shape: Shape | None = None
    chunks: list[bytes] = []
    rows: list[Row] = []
    for values, group in groupby(metric.samples, _values):
        samples = {(sample.name, sample.labels.get(_BUCKET, "")): sample for sample in group}
        columns = tuple(samples)
        if shape is None:
            names = tuple(name for name in samples[columns[0]].labels if name != _BUCKET)
            has_created = columns[-1][0].endswith("_created")
            shape = Shape(metric.documentation, metric.type, names, columns, has_created)
        numbers = tuple([sample.value for sample in samples.values()])
        if columns != shape.columns or (shape.is_counted and not all(map(isfinite, numbers))):
            continue
        rows.append((values, tuple([int(each * _SCALE) for each in numbers]) if shape.is_counted else numbers))
        if len(rows) * (len(columns) + len(values)) >= _CHUNK:
            chunks.append(_chunk(rows))
            rows = []
    if shape is None:
        return None
    return shape, [*chunks, _chunk(rows)]


def _values(sample: Sample) -> Labels:
    return tuple([value for name, value in sample.labels.items() if name != _BUCKET])


def _chunk(rows: Sequence[Row]) -> bytes:
    return zlib.compress(pickle.dumps(rows, protocol=pickle.HIGHEST_PROTOCOL), _LEVEL)


def _rows(packed: Packed | None, pace: Pace) -> Iterator[Row]:
    for chunk in () if packed is None else packed[1]:
        yield from pickle.loads(zlib.decompress(chunk))  # noqa: S301  of this program
        pace.rest()


class MergedMetrics(CollectorRegistry):
    """The metrics of the main process and its workers, for one page at a time.

    A worker that does not answer keeps its last values. Counters of a worker that has ended stay in the sums.
    """

    def __init__(self, own: CollectorRegistry) -> None:
        """Show the metrics of the main process only until `follow` is called; `own` is its registry."""
        super().__init__()
        self._own = own
        self._loop: asyncio.AbstractEventLoop | None = None
        self._channels: Callable[[], Iterable[Channel]] = tuple
        self._asked: dict[Channel, asyncio.Task[Mapping[Channel, Page | None]]] = {}
        """Calls whose answers are not used yet."""
        self._known: dict[Process, dict[str, Packed]] = {}
        """Series of each process on the last page."""
        self._ended: dict[str, tuple[Shape, dict[Labels, Numbers]]] = {}
        """Sums of series that have ended or begun again, by metric."""

    def follow(self, channels: Callable[[], Iterable[Channel]]) -> None:
        """Include workers from now on; `channels` returns the channels to them, and is called on this event loop."""
        self._channels = channels
        self._loop = asyncio.get_running_loop()

    def collect(self, wanted: Container[str] | None = None) -> Iterator[Metric]:
        """Return the metrics of all processes, or only the samples that are `wanted`; called in a thread."""
        asked = None if self._loop is None else asyncio.run_coroutine_threadsafe(self._ask(), self._loop)
        pages: dict[Process, Page | None] = {None: packed(self._own)}
        if asked is not None:
            try:
                pages |= asked.result(2 * _PATIENCE_SECONDS)
            except TimeoutError:  # the event loop is busy
                asked.cancel()
                pages |= dict.fromkeys(self._known.keys() - pages.keys())
        return self._metrics(pages, wanted)

    def _metrics(self, pages: Mapping[Process, Page | None], wanted: Container[str] | None) -> Iterator[Metric]:
        pace = Pace(clock=time.thread_time, sleep=lambda _: time.sleep(_PAUSE_SECONDS))
        sources = [*filter(None, pages.values()), *self._known.values(), self._ended]
        for name in dict.fromkeys(name for source in sources for name in source):
            metric = self._merged(name, pages, wanted, pace)
            if metric is not None:
                yield metric
        for process in [process for process, left in self._known.items() if not left]:
            del self._known[process]

    def restricted_registry(self, names: Iterable[str]) -> RestrictedRegistry:
        return cast("RestrictedRegistry", SimpleNamespace(collect=partial(self.collect, frozenset(names))))

    async def _ask(self) -> Mapping[Process, Page | None]:
        """Return the metrics of each worker; None if it has not answered since the last page."""
        channels = tuple(self._channels())
        earlier = {channel: self._answer(channel) for channel in channels}
        self._asked = {
            channel: self._asked.get(channel) or asyncio.create_task(ask((channel,), CALL, _LATE_SECONDS))
            for channel in channels
        }
        if channels:
            await asyncio.wait(self._asked.values(), timeout=_PATIENCE_SECONDS)
        return {channel: self._answer(channel) or earlier[channel] for channel in channels}

    def _answer(self, channel: Channel) -> Page | None:
        asked = self._asked.get(channel)
        if asked is None or not asked.done():
            return None
        del self._asked[channel]
        return asked.result()[channel]

    def _merged(
        self, name: str, pages: Mapping[Process, Page | None], wanted: Container[str] | None, pace: Pace
    ) -> Metric | None:
        """Return a metric of all processes; None if none of its samples is wanted."""
        changes = [self._change(process, name, pages) for process in {**pages, **self._known}]
        shapes = [each[0] for _, before, now in changes for each in (now, before) if each is not None]
        shape = shapes[0] if shapes else self._ended[name][0]
        if wanted is not None and not any(sample in wanted for sample, _ in shape.columns):
            return None
        alike = [(process, _of(shape, before), _of(shape, now)) for process, before, now in changes]
        rows = self._sums(name, shape, alike, pages, pace) if shape.is_counted else _gauges(name, shape, alike, pace)
        for process, _, now in changes:
            if now is not None:
                self._known.setdefault(process, {})[name] = now
            elif process in self._known:
                self._known[process].pop(name, None)
        metric = Metric(name, shape.text, shape.kind)
        metric.samples = Samples(partial(_samples, shape, rows, wanted))
        return metric

    def _change(self, process: Process, name: str, pages: Mapping[Process, Page | None]) -> Change:
        before = self._known.get(process, {}).get(name)
        if process not in pages:
            return process, before, None
        page = pages[process]
        return process, before, before if page is None else page.get(name)

    def _sums(
        self, name: str, shape: Shape, changes: Iterable[Change], pages: Container[Process], pace: Pace
    ) -> Mapping[Labels, Numbers]:
        """Return the sums by labels, of present and ended series."""
        sums: dict[Labels, Numbers] = {}
        lost: list[tuple[bool, Labels, Numbers]] = []
        for process, before, now in changes:
            rows: dict[Labels, Numbers] = {}
            for labels, numbers in _rows(now, pace):
                rows[labels] = numbers
                sums[labels] = shape.sum(sums.get(labels), numbers)
            for labels, numbers in () if now == before else _rows(before, pace):
                later = rows.get(labels)
                if later is None or shape.began_again(numbers, later):
                    lost.append((later is None and process in pages, labels, numbers))
        for labels, numbers in self._past(name, shape, lost, sums).items():
            sums[labels] = shape.sum(sums.get(labels), numbers)
        return sums

    def _past(
        self, name: str, shape: Shape, lost: Iterable[tuple[bool, Labels, Numbers]], present: Container[Labels]
    ) -> Mapping[Labels, Numbers]:
        """Add series that were `lost` since the last page to the sums of ended series, and return these sums.

        A lost series has a flag: whether its process removed it. If no process has a removed series now, it is dropped
        from the sums too: its endpoint has left the pool.
        """
        known, past = self._ended.pop(name, (shape, {}))
        if known != shape:
            past = {}
        for is_removed, labels, numbers in sorted(lost, key=itemgetter(0)):
            if is_removed and labels not in present:
                past.pop(labels, None)
            else:
                past[labels] = shape.sum(past.get(labels), numbers)
        spare = [labels for labels in past if labels not in present]
        for labels in spare[: max(len(past) - _MOST_ENDED // len(shape.columns), 0)]:
            del past[labels]
        if past:
            self._ended[name] = shape, past
        return past


def _of(shape: Shape, packed: Packed | None) -> Packed | None:
    return None if packed is None or packed[0] != shape else packed


def _gauges(name: str, shape: Shape, changes: Iterable[Change], pace: Pace) -> Mapping[Labels, Numbers]:
    found: dict[Labels, dict[Process, float]] = {}
    for process, _, now in changes:
        for labels, numbers in _rows(now, pace):
            found.setdefault(labels, {})[process] = numbers[0]
    is_of_plugin = shape.labels[:1] == (_OF_PLUGINS,)
    return {labels: (_gauge(name, values, is_of_plugin=is_of_plugin),) for labels, values in found.items()}


def _gauge(name: str, values: Mapping[Process, float], *, is_of_plugin: bool) -> float:
    if name in _SUMMED:
        is_limit = name in _OF_WORKERS and len(values) > 1
        return sum(value for process, value in values.items() if process is not None or not is_limit)
    if name in _LOWEST:
        return min(values.values())
    if None in values and name not in _HIGHEST and not is_of_plugin:
        return values[None]
    return max(values.values())


def _samples(shape: Shape, rows: Mapping[Labels, Numbers], wanted: Container[str] | None) -> Iterator[Sample]:
    unit = _SCALE if shape.is_counted else 1
    for values, numbers in rows.items():
        labels = dict(zip(shape.labels, values, strict=True))
        for (name, bucket), number in zip(shape.columns, numbers, strict=True):
            if wanted is None or name in wanted:
                yield Sample(name, {**labels, _BUCKET: bucket} if bucket else labels, number / unit)


def show_processes(registry: CollectorRegistry, counts: Callable[[], Processes]) -> None:
    def rows() -> Iterator[tuple[Labels, Numbers]]:
        now = counts()
        yield ("serving",), (now.serving,)
        yield ("starting",), (now.starting,)

    Computed(registry, ("state",), {"llm_d_epp_worker_processes": "Worker processes, by state."}, rows)
    text = "Worker processes that ended or hung, and were replaced."
    Computed(registry, (), {"llm_d_epp_worker_replacements_total": text}, lambda: [((), (counts().replaced,))])
