# SPDX-License-Identifier: Apache-2.0
"""Parameters that describe the metrics page of an engine."""

from epp.framework.plugin import Parameters
from epp.framework.snapshot import CORE_COLUMNS
from epp.pool.collectors.exposition import Selector

_TAKEN = frozenset(column.name for column in CORE_COLUMNS)


class CustomMetric(Parameters, frozen=True):
    """A further series, for plugins that read endpoint attributes by name."""

    attribute_key: str
    """Name of the attribute."""
    metric_spec: str
    """The series, `name` or `name{label=value,...}`. Of several that match, the highest value counts; add labels to
    select one of them."""

    def __post_init__(self) -> None:
        """Check name and spec; raises ValueError."""
        if not self.attribute_key:
            raise ValueError(
                f"customMetrics has an entry for {self.metric_spec!r} without an attributeKey: give a name"
            )
        if self.attribute_key in _TAKEN:
            raise ValueError(
                f"attributeKey {self.attribute_key!r} is the name of a built-in column: choose another name"
            )
        try:
            Selector.parse(self.metric_spec)
        except ValueError as error:
            raise ValueError(f"attributeKey {self.attribute_key!r}: {error}") from None


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
    """Of those, tokens found, a counter."""
    custom_metrics: tuple[CustomMetric, ...] = ()
    """Further series."""

    def __post_init__(self) -> None:
        """Check every spec; raises ValueError."""
        if not self.name:
            raise ValueError("an engine without a name: write the value of the engine label, such as name: vllm")
        keys = [metric.attribute_key for metric in self.custom_metrics]
        twice = sorted({key for key in keys if keys.count(key) > 1})
        if twice:
            raise ValueError(f"engine {self.name!r}: customMetrics has attributeKey {twice[0]!r} more than once")
        specs = (getattr(self, name) for name in self.__struct_fields__ if name.endswith("_spec"))
        for spec in filter(None, specs):
            try:
                Selector.parse(spec)
            except ValueError as error:
                raise ValueError(f"engine {self.name!r}: {error}") from None
