# SPDX-License-Identifier: Apache-2.0
"""Series of an engine's metrics page, and their conversion into columns and attributes."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, TypeAlias, cast

from epp.framework.datalayer import Report
from epp.framework.snapshot import (
    CLUSTER_KV_USAGE,
    CLUSTER_QUEUE,
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
from epp.pool.collectors.engine_config import BUILT_IN, OTHER_PREFIXES, OTHER_SPELLINGS, RANK_LABELS, EngineConfig
from epp.pool.collectors.exposition import PageLayout, Selector, Series

Fold: TypeAlias = Callable[[Iterable[float]], float]

MOST_ADAPTERS = 1000
"""Most names of running and of waiting adapters of an endpoint; a GPU runs some dozens."""
LONGEST_NAME = 256
_LONGEST_NUMBER = 9

_ANY = (-math.inf, math.inf)
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
    fold: Fold
    rank_label: str = ""
    """Label of the rank; the highest of its series counts. Empty if each series is a rank."""

    def read(self, page: bytes, layout: PageLayout, problems: list[str]) -> float | None:
        """Return the number; the column's unknown value without a possible one, None without any series.

        Impossible values are added to `problems`.
        """
        series = _first(self.selectors, page, layout)
        if not series:
            return None
        number = series[0].value if len(series) == 1 else self.folded(series)
        if not math.isfinite(number):
            return self.column.unknown
        least, most = _POSSIBLE.get(self.column.name, _ANY)
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
        return {signal.column: signal.folded(series, _label_value(label)) for label, signal in self.signals}


@dataclass(frozen=True, slots=True)
class LoraInfo:
    """A series with adapters in its labels, and a time stamp as value."""

    selector: Selector

    def read(self, page: bytes, layout: PageLayout, former: LoraState) -> LoraState | None:
        """Return the state of the newest series, since old ones stay on the page; None without any series."""
        series = [one for one in layout.read(self.selector, page) if not math.isnan(one.value)]
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


@dataclass(frozen=True, slots=True)
class Engine:
    """All series of one engine's page."""

    name: str
    signals: tuple[Signal, ...]
    cache_info: CacheInfo | None
    lora: LoraInfo | None

    @property
    def series_names(self) -> tuple[str, ...]:
        names = [selector.name for signal in self.signals for selector in signal.selectors]
        names += [selector.name for selector in self.cache_info.selectors] if self.cache_info else []
        return (*names, *([self.lora.selector.name] if self.lora else []))

    @property
    def newest_series(self) -> frozenset[str]:
        """Names of series for which only the newest sample counts, whatever its labels."""
        if self.lora is None or self.lora.selector.labels:
            return frozenset()
        name = self.lora.selector.name
        return frozenset({name}) if self.series_names.count(name) == 1 else frozenset()

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
        adapters = None if self.lora is None else self.lora.read(page, layout, cast("LoraState", before))
        if silent and adapters is None:
            return None
        attributes = {} if self.lora is None else {LORA: adapters or LORA.unknown}
        return Report(columns, attributes, tuple(problems))


def compile_engine(config: EngineConfig) -> Engine:
    """Return the engine: with the specs of the configuration, and the built-in ones by default."""
    base = BUILT_IN.get(config.name, EngineConfig(name=config.name))
    rank = RANK_LABELS.get(config.name, "")
    signals = [
        Signal(column, _spellings(spec), fold, rank_label)
        for column, spec, fold, rank_label in (
            (WAITING, config.queued_requests_spec or base.queued_requests_spec, sum, rank),
            (RUNNING, config.running_requests_spec or base.running_requests_spec, sum, rank),
            (KV_USAGE, config.kv_usage_spec or base.kv_usage_spec, max, ""),
            (KV_BLOCK_TOKENS, config.cache_block_size_spec or base.cache_block_size_spec, max, ""),
            (KV_BLOCKS, config.cache_num_blocks_spec or base.cache_num_blocks_spec, sum, rank),
            (PREFIX_QUERY_TOKENS, config.prefix_queries_spec or base.prefix_queries_spec, sum, ""),
            (PREFIX_HIT_TOKENS, config.prefix_hits_spec or base.prefix_hits_spec, sum, ""),
        )
        if spec
    ]
    signals += [
        Signal(Column(metric.attribute_key, ""), _spellings(metric.metric_spec), max)
        for metric in config.custom_metrics
    ]
    by_label = tuple(
        (label, signal)
        for label, signal in (
            (
                config.cache_block_size_label_name or base.cache_block_size_label_name or "block_size",
                Signal(KV_BLOCK_TOKENS, (), max),
            ),
            (
                config.cache_num_blocks_label_name or base.cache_num_blocks_label_name or "num_gpu_blocks",
                Signal(KV_BLOCKS, (), sum, rank),
            ),
        )
    )
    cache_info = config.cache_info_spec or base.cache_info_spec
    lora = config.lora_spec or base.lora_spec
    return Engine(
        name=config.name,
        signals=tuple(signals),
        cache_info=CacheInfo(_spellings(cache_info), by_label) if cache_info else None,
        lora=LoraInfo(Selector.parse(lora)) if lora else None,
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


def _label_value(label: str) -> Callable[[Series], float]:
    """Return a function for the number in a label; NaN for other texts: vLLM writes `None` until its cache is sized."""

    def value(series: Series) -> float:
        try:
            return float(series.labels.get(label, ""))
        except ValueError:
            return math.nan

    return value


def _adapters(names: str) -> frozenset[str]:
    """Return the names, limited in number and length."""
    parts = names.split(",", MOST_ADAPTERS)[:MOST_ADAPTERS]
    return frozenset(name for part in parts if 0 < len(name := part.strip()) <= LONGEST_NAME)
