"""Reads queue, batch, KV cache, prefix cache and adapters from an engine's metrics page."""

from epp.collectors.engines import BUILT_IN, Engine, EngineConfig, compile_engine
from epp.collectors.exposition import Series
from epp.framework.clock import Clock
from epp.framework.datalayer import Extractor, PageError, Report
from epp.framework.endpoint import Endpoint
from epp.framework.plugins import Parameters
from epp.framework.snapshot import LORA, Column, LoraState

_OTHER_ENGINES = (
    (b"sglang:", "SGLang"),
    (b"sglang_", "SGLang"),
    (b"trtllm_", "TensorRT-LLM"),
    (b"nv_trt_llm_", "Triton with TensorRT-LLM"),
    (b"nv_inference_", "Triton"),
    (b"tgi_", "TGI"),
    (b"lmdeploy:", "LMDeploy"),
    (b"llamacpp:", "llama.cpp"),
    (b"vllm:", "vLLM"),
)


class CoreMetricsParameters(Parameters, frozen=True):
    """Which engine runs at an endpoint, and what its series are called."""

    engine_label_key: str = "llm-d.ai/engine-type"
    """The endpoint label whose value names the engine."""
    default_engine: str = "vllm"
    """The engine of endpoints without that label."""
    engine_configs: tuple[EngineConfig, ...] = ()
    """Engines that are not built in, and other series names for those that are."""

    def __post_init__(self) -> None:
        """Check that names are unique and known; raises ValueError."""
        names = [config.name for config in self.engine_configs]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"engineConfigs has engine {twice[0]!r} more than once: merge the entries")
        known = sorted({*BUILT_IN, *names})
        if self.default_engine not in known:
            raise ValueError(
                f"defaultEngine {self.default_engine!r} is not known: take one of {', '.join(known)}, "
                f"or describe it in engineConfigs"
            )


class CoreMetricsExtractor(Extractor[CoreMetricsParameters]):
    """Queues and counters of data-parallel ranks are added up; of their KV usages the highest counts.

    A signal that its engine has a series for, but this page has not, becomes unknown again, never 0.
    """

    plugin_type = "core-metrics-extractor"

    def __init__(
        self, parameters: CoreMetricsParameters | None = None, *, name: str = "", clock: Clock | None = None
    ) -> None:
        super().__init__(parameters, name=name, clock=clock)
        configs = {**BUILT_IN, **{config.name: config for config in self.parameters.engine_configs}}
        self._engines = {engine: compile_engine(config) for engine, config in configs.items()}

    def extract(self, page: bytes, endpoint: Endpoint) -> Report:
        """Return what the page says; raises PageError for a page or an engine that is not understood."""
        engine = self._engine_of(endpoint)
        columns: dict[Column, float] = {}
        silent = True
        for signal in engine.signals:
            value = signal.read(page)
            columns[signal.column] = signal.column.unknown if value is None else value
            silent = silent and value is None
        if engine.cache_info is not None:
            info = engine.cache_info.read(page)
            columns.update(info or {signal.column: signal.column.unknown for _, signal in engine.cache_info.signals})
            silent = silent and info is None
        newest = engine.newest_lora(page)
        if silent and newest is None:
            raise PageError(self._hint(page, engine))
        lora = LORA.unknown if newest is None else _lora_state(newest)
        return Report(columns, {} if engine.lora is None else {LORA: lora})

    def _engine_of(self, endpoint: Endpoint) -> Engine:
        key = self.parameters.engine_label_key
        name = endpoint.labels.get(key, self.parameters.default_engine)
        engine = self._engines.get(name)
        if engine is None:
            raise PageError(
                f"endpoint {endpoint.id} has label {key}={name}, an engine that is not known: use one of "
                f"{', '.join(sorted(self._engines))}, or describe {name!r} in engineConfigs of plugin {self.name!r}"
            )
        return engine

    def _hint(self, page: bytes, engine: Engine) -> str:
        start = page.lstrip()[:1]
        nothing = f"the page has no series of engine {engine.name!r}"
        if not start:
            return f"{nothing}: it is empty"
        if start in (b"{", b"["):
            return f"{nothing}: it is JSON, not Prometheus text (TensorRT-LLM has the text at /prometheus/metrics)"
        if start == b"<":
            return f"{nothing}: it is HTML or XML, not Prometheus text; check the source's path and port"
        for prefix, other in _OTHER_ENGINES:
            if page.startswith(prefix) or b"\n" + prefix in page:
                return (
                    f"{nothing}, but some of {other}: set the endpoint's label {self.parameters.engine_label_key} "
                    f"and, unless built in, describe the engine in engineConfigs"
                )
        return (
            f"{nothing}: looked for {', '.join(engine.series_names)}; is the path right, are the metrics switched on?"
        )


def _lora_state(series: Series) -> LoraState:
    labels = series.labels
    max_lora = labels.get("max_lora", "")
    return LoraState(
        running=_adapters(labels.get("running_lora_adapters", "")),
        waiting=_adapters(labels.get("waiting_lora_adapters", "")),
        max_adapters=int(max_lora) if max_lora.isdecimal() else 0,
    )


def _adapters(names: str) -> frozenset[str]:
    return frozenset(name for part in names.split(",") if (name := part.strip()))
