"""Which series of an engine's page say what: the built-in table, and a configuration's changes to it."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeAlias

from epp.collectors.exposition import Selector, Series
from epp.framework.plugins import Parameters
from epp.framework.snapshot import (
    KV_BLOCK_TOKENS,
    KV_BLOCKS,
    KV_USAGE,
    PREFIX_HIT_TOKENS,
    PREFIX_QUERY_TOKENS,
    RUNNING,
    WAITING,
    Column,
)

Fold: TypeAlias = Callable[[Iterable[float]], float]


class EngineConfig(Parameters, frozen=True):
    """Names of one engine's series, each `name` or `name{label=value,...}`; what is left out is the built-in one."""

    name: str
    """The value of the engine label."""
    queued_requests_spec: str = ""
    running_requests_spec: str = ""
    kv_usage_spec: str = ""
    """A share, 0..1."""
    lora_spec: str = ""
    cache_info_spec: str = ""
    """A series whose labels describe the KV cache."""
    cache_block_size_label_name: str = ""
    """The label of `cacheInfoSpec` with the tokens in a block."""
    cache_num_blocks_label_name: str = ""
    """The label of `cacheInfoSpec` with the number of blocks."""
    cache_block_size_spec: str = ""
    """A series whose value is the tokens in a block; goes before the label."""
    cache_num_blocks_spec: str = ""
    """A series whose value is the number of blocks; goes before the label."""
    prefix_queries_spec: str = ""
    """Tokens looked up in the prefix cache, a counter."""
    prefix_hits_spec: str = ""
    """Of those, tokens found, a counter."""
    custom_metrics: tuple[Mapping[str, str], ...] = ()

    def __post_init__(self) -> None:
        """Check every spec; raises ValueError."""
        if not self.name:
            raise ValueError("an engine without a name: write the value of the engine label, such as name: vllm")
        if self.custom_metrics:
            raise ValueError(f"engine {self.name!r}: customMetrics are not supported: remove them")
        for spec in (
            self.queued_requests_spec,
            self.running_requests_spec,
            self.kv_usage_spec,
            self.lora_spec,
            self.cache_info_spec,
            self.cache_block_size_spec,
            self.cache_num_blocks_spec,
            self.prefix_queries_spec,
            self.prefix_hits_spec,
        ):
            if spec:
                try:
                    Selector.parse(spec)
                except ValueError as error:
                    raise ValueError(f"engine {self.name!r}: {error}") from None


@dataclass(frozen=True, slots=True)
class Signal:
    """One column, the series that say it, and how those of several data-parallel ranks become one number."""

    column: Column
    selectors: tuple[Selector, ...]
    """Spellings; the first that the page has counts."""
    fold: Fold

    def read(self, page: bytes) -> float | None:
        """Return the number, the column's unknown when no series has a finite value, None without any series."""
        for selector in self.selectors:
            series = selector.read(page)
            if series:
                return self.folded(one.value for one in series)
        return None

    def folded(self, values: Iterable[float]) -> float:
        """Return one number of several; those that are not finite say nothing."""
        finite = [value for value in values if math.isfinite(value)]
        return self.fold(finite) if finite else self.column.unknown


@dataclass(frozen=True, slots=True)
class CacheInfo:
    """A series whose labels, not its value, carry numbers."""

    selector: Selector
    signals: tuple[tuple[str, Signal], ...]
    """Labels and the columns they fill; these signals have no selectors of their own."""

    def read(self, page: bytes) -> dict[Column, float] | None:
        """Return the columns; None without any series."""
        series = self.selector.read(page)
        if not series:
            return None
        labels = [one.labels for one in series]
        return {
            signal.column: signal.folded(_number(one.get(label, "")) for one in labels)
            for label, signal in self.signals
        }


@dataclass(frozen=True, slots=True)
class Engine:
    """What to look for on one engine's page."""

    name: str
    signals: tuple[Signal, ...]
    cache_info: CacheInfo | None
    lora: Selector | None

    @property
    def series_names(self) -> tuple[str, ...]:
        """Every name that is looked for."""
        names = [selector.name for signal in self.signals for selector in signal.selectors]
        others = (self.lora, self.cache_info.selector if self.cache_info else None)
        return (*names, *(selector.name for selector in others if selector is not None))

    def newest_lora(self, page: bytes) -> Series | None:
        """Return the adapter series with the highest value: it is a time stamp, and old series never go away."""
        if self.lora is None:
            return None
        series = [one for one in self.lora.read(page) if not math.isnan(one.value)]
        return max(series, key=lambda one: one.value, default=None)


BUILT_IN: Mapping[str, EngineConfig] = MappingProxyType(
    {
        "vllm": EngineConfig(
            name="vllm",
            queued_requests_spec="vllm:num_requests_waiting",
            running_requests_spec="vllm:num_requests_running",
            kv_usage_spec="vllm:kv_cache_usage_perc",
            lora_spec="vllm:lora_requests_info",
            cache_info_spec="vllm:cache_config_info",
            cache_block_size_label_name="block_size",
            cache_num_blocks_label_name="num_gpu_blocks",
            prefix_queries_spec="vllm:prefix_cache_queries_total",
            prefix_hits_spec="vllm:prefix_cache_hits_total",
        )
    }
)
"""Engines that need no configuration."""

_OLD_SPELLINGS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"vllm:kv_cache_usage_perc": ("vllm:gpu_cache_usage_perc",)}
)


def compile_engine(config: EngineConfig) -> Engine:
    """Return what to look for: the configuration's specs, and the built-in ones where it has none."""
    base = BUILT_IN.get(config.name, EngineConfig(name=config.name))
    block_tokens_label = config.cache_block_size_label_name or base.cache_block_size_label_name
    blocks_label = config.cache_num_blocks_label_name or base.cache_num_blocks_label_name
    signals = tuple(
        Signal(column, _spellings(spec), fold)
        for column, spec, fold in (
            (WAITING, config.queued_requests_spec or base.queued_requests_spec, sum),
            (RUNNING, config.running_requests_spec or base.running_requests_spec, sum),
            (KV_USAGE, config.kv_usage_spec or base.kv_usage_spec, max),
            (KV_BLOCK_TOKENS, config.cache_block_size_spec or base.cache_block_size_spec, max),
            (KV_BLOCKS, config.cache_num_blocks_spec or base.cache_num_blocks_spec, sum),
            (PREFIX_QUERY_TOKENS, config.prefix_queries_spec or base.prefix_queries_spec, sum),
            (PREFIX_HIT_TOKENS, config.prefix_hits_spec or base.prefix_hits_spec, sum),
        )
        if spec
    )
    by_value = {signal.column for signal in signals}
    by_label = tuple(
        (label, Signal(column, (), fold))
        for label, column, fold in ((block_tokens_label, KV_BLOCK_TOKENS, max), (blocks_label, KV_BLOCKS, sum))
        if label and column not in by_value
    )
    cache_info = config.cache_info_spec or base.cache_info_spec
    lora = config.lora_spec or base.lora_spec
    return Engine(
        name=config.name,
        signals=signals,
        cache_info=CacheInfo(Selector.parse(cache_info), by_label) if cache_info and by_label else None,
        lora=Selector.parse(lora) if lora else None,
    )


def _spellings(spec: str) -> tuple[Selector, ...]:
    return tuple(Selector.parse(one) for one in (spec, *_OLD_SPELLINGS.get(spec, ())))


def _number(text: str) -> float:
    """NaN for what is no number: vLLM writes `None` until it has sized its cache."""
    try:
        return float(text)
    except ValueError:
        return math.nan
