# SPDX-License-Identifier: Apache-2.0
"""Series of an engine's metrics page: parameters that name them, and their conversion into columns and attributes."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any, cast

import msgspec

from epp.framework.datalayer import Report
from epp.framework.plugin import Parameters
from epp.framework.snapshot import (
    CLUSTER_KV_USAGE,
    CLUSTER_QUEUE,
    CORE_COLUMNS,
    KV_BLOCK_TOKENS,
    KV_BLOCKS,
    KV_USAGE,
    LORA,
    PREFIX_HIT_TOKENS,
    PREFIX_QUERY_TOKENS,
    RUNNING,
    WAITING,
    Attribute,
    Column,
    LoraState,
)
from epp.pool.collectors.exposition import PageLayout, Selector, Series

_TAKEN = frozenset(column.name for column in CORE_COLUMNS)
OTHER_SPELLINGS: Mapping[str, tuple[str, ...]] = {"vllm:kv_cache_usage_perc": ("vllm:gpu_cache_usage_perc",)}
"""Former names of a series, by its current name."""
OTHER_PREFIXES: Mapping[str, str] = {"sglang:": "sglang_"}
"""Prefixes of series, and their spelling in some versions of the engine."""
RANK_LABELS: Mapping[str, str] = {"sglang": "dp_rank"}
"""The label of the data-parallel rank, by engine, if the series of a rank are repeated with other labels.

In SGLang, every pipeline stage repeats the numbers of its rank, and there are series by priority besides the total.
"""
HOST = "triton"
"""The engine that hosts other engines, whose series appear on its page once they are loaded."""
SERIES_PREFIXES: tuple[tuple[bytes, str, str], ...] = (
    (b"vllm:", "vLLM", "vllm"),
    (b"sglang:", "SGLang", "sglang"),
    (b"sglang_", "SGLang", "sglang"),
    (b"trtllm_", "TensorRT-LLM", "trtllm-serve"),
    (b"nv_trt_llm_", "Triton with TensorRT-LLM", "triton-tensorrt-llm"),  # before its host
    (b"nv_inference_", "Triton", "triton"),
    (b"tgi_", "TGI", "tgi"),
    (b"lmdeploy:", "LMDeploy", "lmdeploy"),
    (b"llamacpp:", "llama.cpp", "llamacpp"),
)
"""Prefix of the series of an engine, its product name, and the built-in engine for it."""


class CustomMetric(Parameters, frozen=True):
    """A further series, for plugins that read endpoint attributes by name."""

    attribute_key: str
    """Name of the attribute."""
    metric_spec: str
    """The series, `name` or `name{label=value,...}`. If several series match, the highest value counts; add labels to
    select one of them."""

    def __post_init__(self) -> None:
        if not self.attribute_key:
            raise ValueError(
                f"customMetrics has an entry for {self.metric_spec!r} without an attributeKey: give a name"
            )
        if self.attribute_key in _TAKEN:
            raise ValueError(
                f"attributeKey {self.attribute_key!r} is the name of a built-in column: choose another name"
            )
        Selector.check(self.metric_spec, f"attributeKey {self.attribute_key!r}")


class EngineConfig(Parameters, frozen=True):
    """Names of an engine's series, each `name` or `name{label=value,...}`; by default those of the built-in one."""

    name: str
    """The value of the engine label."""
    queued_requests_spec: str = ""
    """Requests in the engine's queue, a gauge."""
    running_requests_spec: str = ""
    """Requests in the engine's batch, a gauge."""
    kv_usage_spec: str = ""
    """Share of the KV cache in use, 0..1."""
    lora_spec: str = ""
    """A series whose labels list adapters, such as `vllm:lora_requests_info`."""
    cache_info_spec: str = ""
    """A series whose labels describe the KV cache."""
    cache_block_size_label_name: str = ""
    """The label of `cacheInfoSpec` with the number of tokens in a block; `block_size` by default."""
    cache_num_blocks_label_name: str = ""
    """The label of `cacheInfoSpec` with the number of blocks; `num_gpu_blocks` by default."""
    cache_block_size_spec: str = ""
    """A series with the number of tokens in a block; takes precedence over the label."""
    cache_num_blocks_spec: str = ""
    """A series with the number of blocks; takes precedence over the label."""
    prefix_queries_spec: str = ""
    """Tokens looked up in the prefix cache, a counter."""
    prefix_hits_spec: str = ""
    """Tokens found in the prefix cache, a counter."""
    custom_metrics: tuple[CustomMetric, ...] = ()
    """Further series."""

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("an engine has no name: write the value of the engine label, such as name: vllm")
        keys = [metric.attribute_key for metric in self.custom_metrics]
        twice = sorted({key for key in keys if keys.count(key) > 1})
        if twice:
            raise ValueError(f"engine {self.name!r}: customMetrics has attributeKey {twice[0]!r} more than once")
        specs = (getattr(self, name) for name in self.__struct_fields__ if name.endswith("_spec"))
        for spec in filter(None, specs):
            Selector.check(spec, f"engine {self.name!r}")


BUILT_IN: Mapping[str, EngineConfig] = {
    config.name: config
    for config in (
        EngineConfig(
            name="vllm",
            queued_requests_spec="vllm:num_requests_waiting",
            running_requests_spec="vllm:num_requests_running",
            kv_usage_spec="vllm:kv_cache_usage_perc",
            lora_spec="vllm:lora_requests_info",
            cache_info_spec="vllm:cache_config_info",
            prefix_queries_spec="vllm:prefix_cache_queries_total",
            prefix_hits_spec="vllm:prefix_cache_hits_total",
        ),
        EngineConfig(
            name="sglang",
            queued_requests_spec="sglang:num_queue_reqs",
            running_requests_spec="sglang:num_running_reqs",
            kv_usage_spec="sglang:token_usage",
            # Gauges since 0.5.11, labels of one series before.
            cache_block_size_spec="sglang:page_size",
            cache_num_blocks_spec="sglang:num_pages",
            cache_info_spec="sglang:cache_config_info",
            cache_block_size_label_name="page_size",
            cache_num_blocks_label_name="num_pages",
            prefix_queries_spec="sglang:prompt_tokens_total",
            prefix_hits_spec="sglang:cached_tokens_total",
        ),
        EngineConfig(
            name="trtllm-serve",
            queued_requests_spec="trtllm_num_requests_waiting",
            running_requests_spec="trtllm_num_requests_running",
            kv_usage_spec="trtllm_kv_cache_utilization",
            cache_block_size_spec="trtllm_kv_cache_tokens_per_block",
            cache_num_blocks_spec="trtllm_kv_cache_max_blocks",
            cache_info_spec="trtllm_cache_config_info",
        ),
        EngineConfig(
            name="triton-tensorrt-llm",
            queued_requests_spec="nv_trt_llm_request_metrics{request_type=waiting}",
            running_requests_spec="nv_trt_llm_request_metrics{request_type=scheduled}",
            kv_usage_spec="nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=fraction}",
            cache_block_size_spec="nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=tokens_per}",
            cache_num_blocks_spec="nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=max}",
        ),
        # No running requests: Triton has no gauge of them; nv_inference_exec_count, which llm-d-router reads
        # instead, counts all executions since the start.
        EngineConfig(name="triton", queued_requests_spec="nv_inference_pending_request_count"),
        # No KV usage: tgi_batch_current_max_tokens grows with the batch, and there is no gauge of the capacity.
        EngineConfig(name="tgi", queued_requests_spec="tgi_queue_size", running_requests_spec="tgi_batch_current_size"),
        EngineConfig(
            name="lmdeploy",
            queued_requests_spec="lmdeploy:num_requests_waiting",
            running_requests_spec="lmdeploy:num_requests_running",
            kv_usage_spec="lmdeploy:gpu_cache_usage_perc",
        ),
        # With --metrics. Builds since August 2025 have no KV usage.
        EngineConfig(
            name="llamacpp",
            queued_requests_spec="llamacpp:requests_deferred",
            running_requests_spec="llamacpp:requests_processing",
            kv_usage_spec="llamacpp:kv_cache_usage_ratio",
        ),
    )
}

MOST_ADAPTERS = 1000
"""Most names of running and of waiting adapters of an endpoint; a GPU runs some dozens."""
LONGEST_NAME = 256
_LONGEST_NUMBER = 9

_POSSIBLE: Mapping[str, tuple[float, float]] = {
    WAITING.name: (0, 1e6),
    RUNNING.name: (0, 1e6),
    KV_USAGE.name: (0, 1.01),
    KV_BLOCK_TOKENS.name: (0, 1e6),
    KV_BLOCKS.name: (0, 1e9),
    PREFIX_QUERY_TOKENS.name: (0, 1e18),
    PREFIX_HIT_TOKENS.name: (0, 1e18),
    CLUSTER_KV_USAGE.name: (0, 1.01),
    CLUSTER_QUEUE.name: (0, 1e6),
}
"""Least and greatest possible value, by column."""

_value: Callable[[Series], float] = attrgetter("value")


@dataclass(frozen=True, slots=True)
class Signal:
    """A column, its series, and the function that combines the values of several data-parallel ranks."""

    column: Column
    selectors: tuple[Selector, ...]
    """Spellings; the first one on the page counts."""
    fold: Callable[[Iterable[float]], float]
    rank_label: str = ""
    """Label of the rank; the highest of its series counts. Empty if each series is a rank."""

    def read(self, page: bytes, layout: PageLayout, problems: list[str]) -> float | None:
        """Return the number; the column's unknown value if it is impossible, None if there is no series.

        Impossible values are added to `problems`.
        """
        series = _first(self.selectors, page, layout)
        if not series:
            return None
        number = series[0].value if len(series) == 1 else self.folded(series)
        if not math.isfinite(number):
            return self.column.unknown
        least, most = _POSSIBLE.get(self.column.name, (-math.inf, math.inf))
        if least <= number <= most and not series[0].is_old:
            return number
        name = self.selectors[0].name
        problems.append(f"{name} has an outdated time stamp" if series[0].is_old else f"{name} is {number:g}")
        return self.column.unknown

    def folded(self, series: Sequence[Series], value: Callable[[Series], float] = _value) -> float:
        """Return the combined number of several series; values that are not finite are ignored."""
        finite = [(one, number) for one in series if math.isfinite(number := value(one))]
        if not finite:
            return self.column.unknown
        if not self.rank_label:
            return self.fold(number for _, number in finite)
        ranks: dict[str, float] = {}
        for one, number in finite:
            rank = one.labels.get(self.rank_label, "")
            ranks[rank] = max(number, ranks.get(rank, number))
        return self.fold(ranks.values())


@dataclass(frozen=True, slots=True)
class CacheInfo:
    """A series with numbers in its labels."""

    selectors: tuple[Selector, ...]
    """Spellings; the first one on the page counts."""
    signals: tuple[tuple[str, Signal], ...]
    """Labels and their columns; these signals have no selectors."""

    @property
    def columns(self) -> tuple[Column, ...]:
        return tuple(signal.column for _, signal in self.signals)

    def read(self, page: bytes, layout: PageLayout) -> Mapping[Column, float]:
        """Return the columns; none without any series."""
        series = _first(self.selectors, page, layout)
        return layout.derived(series, self._numbers) if series else {}

    def _numbers(self, series: Sequence[Series]) -> Mapping[Column, float]:
        return {signal.column: signal.folded(series, partial(_label_number, label)) for label, signal in self.signals}


@dataclass(frozen=True, slots=True)
class Engine:
    """All series of one engine's page."""

    name: str
    signals: tuple[Signal, ...]
    cache_info: CacheInfo | None
    lora: Selector | None
    """A series with adapters in its labels, and a time stamp as value."""

    @property
    def series_names(self) -> tuple[str, ...]:
        selectors = [selector for signal in self.signals for selector in signal.selectors]
        selectors += self.cache_info.selectors if self.cache_info else ()
        selectors += [self.lora] if self.lora else []
        return tuple(selector.name for selector in selectors)

    @property
    def newest_series(self) -> frozenset[str]:
        """Names of series for which only the newest sample counts, whatever its labels."""
        if self.lora is None or self.lora.labels or self.series_names.count(self.lora.name) > 1:
            return frozenset()
        return frozenset({self.lora.name})

    @property
    def fills(self) -> tuple[Column | Attribute[Any], ...]:
        columns = [signal.column for signal in self.signals]
        columns += self.cache_info.columns if self.cache_info else ()
        return (*dict.fromkeys(columns), *([LORA] if self.lora else []))

    def read(self, page: bytes, layout: PageLayout, former: Report | None = None) -> Report | None:
        """Return the report, with unknown values for missing series; None if the page has none of the series.

        `former` is the report of the page before.
        """
        columns: dict[Column, float] = {}
        problems: list[str] = []
        silent = True
        for signal in self.signals:
            value = signal.read(page, layout, problems)
            columns[signal.column] = signal.column.unknown if value is None else value
            silent = silent and value is None
        if self.cache_info is not None:
            missing = [one for one in self.cache_info.columns if math.isnan(columns.get(one, math.nan))]
            info = self.cache_info.read(page, layout) if missing else {}
            columns.update((column, info.get(column, column.unknown)) for column in missing)
            silent = silent and not info
        before = LORA.unknown if former is None else former.attributes.get(LORA, LORA.unknown)
        adapters = None if self.lora is None else _read_lora(self.lora, page, layout, cast("LoraState", before))
        if silent and adapters is None:
            return None
        attributes = {} if self.lora is None else {LORA: adapters or LORA.unknown}
        return Report(columns, attributes, tuple(problems))


def compile_engine(config: EngineConfig) -> Engine:
    """Return the engine: with the specs of the configuration, and the built-in ones by default."""
    if base := BUILT_IN.get(config.name):
        given = {field: value for field in config.__struct_fields__ if (value := getattr(config, field))}
        config = msgspec.structs.replace(base, **given)
    rank = RANK_LABELS.get(config.name, "")
    signals = [
        Signal(column, _spellings(spec), fold, rank_label)
        for column, spec, fold, rank_label in (
            (WAITING, config.queued_requests_spec, sum, rank),
            (RUNNING, config.running_requests_spec, sum, rank),
            (KV_USAGE, config.kv_usage_spec, max, ""),
            (KV_BLOCK_TOKENS, config.cache_block_size_spec, max, ""),
            (KV_BLOCKS, config.cache_num_blocks_spec, sum, rank),
            (PREFIX_QUERY_TOKENS, config.prefix_queries_spec, sum, ""),
            (PREFIX_HIT_TOKENS, config.prefix_hits_spec, sum, ""),
        )
        if spec
    ]
    signals += [
        Signal(Column(metric.attribute_key, ""), _spellings(metric.metric_spec), max)
        for metric in config.custom_metrics
    ]
    by_label = (
        (config.cache_block_size_label_name or "block_size", Signal(KV_BLOCK_TOKENS, (), max)),
        (config.cache_num_blocks_label_name or "num_gpu_blocks", Signal(KV_BLOCKS, (), sum, rank)),
    )
    return Engine(
        name=config.name,
        signals=tuple(signals),
        cache_info=CacheInfo(_spellings(config.cache_info_spec), by_label) if config.cache_info_spec else None,
        lora=Selector.parse(config.lora_spec) if config.lora_spec else None,
    )


def _spellings(spec: str) -> tuple[Selector, ...]:
    renamed = [other + spec.removeprefix(prefix) for prefix, other in OTHER_PREFIXES.items() if spec.startswith(prefix)]
    return tuple(Selector.parse(one) for one in (spec, *OTHER_SPELLINGS.get(spec, ()), *renamed))


def _first(selectors: Iterable[Selector], page: bytes, layout: PageLayout) -> Sequence[Series]:
    """Return the series of the first spelling on the page."""
    for selector in selectors:
        series = layout.read(selector, page)
        if series:
            return series
    return ()


def _label_number(label: str, series: Series) -> float:
    """Return the number in a label; NaN if it is not a number: vLLM writes `None` before it has sized its cache."""
    try:
        return float(series.labels.get(label, ""))
    except ValueError:
        return math.nan


def _read_lora(selector: Selector, page: bytes, layout: PageLayout, former: LoraState) -> LoraState | None:
    """Return the state of the newest series, since old ones stay on the page; None without any series."""
    series = [one for one in layout.read(selector, page) if not math.isnan(one.value)]
    if not series:
        return None
    labels = max(series, key=lambda one: one.value).labels
    running, max_lora = _adapters(labels.get("running_lora_adapters", "")), labels.get("max_lora", "")
    fit = int(max_lora) if max_lora.isdecimal() and len(max_lora) <= _LONGEST_NUMBER else 0
    return LoraState(
        running=running,
        waiting=_adapters(labels.get("waiting_lora_adapters", "")),
        max_adapters=fit,
        loaded=tuple(dict.fromkeys((*sorted(running), *former.loaded)))[:fit],
    )


def _adapters(names: str) -> frozenset[str]:
    """Return the names, limited in number and length."""
    parts = names.split(",", MOST_ADAPTERS)[:MOST_ADAPTERS]
    return frozenset(name for part in parts if 0 < len(name := part.strip()) <= LONGEST_NAME)
