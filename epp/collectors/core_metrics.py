"""Reads queue, batch, KV cache, prefix cache and adapters from an engine's metrics page."""

from collections.abc import Iterator

from epp.collectors.built_in_engines import BUILT_IN, HOST, SERIES_PREFIXES
from epp.collectors.engine_config import EngineConfig
from epp.collectors.engines import Engine, compile_engine
from epp.framework.clock import Clock
from epp.framework.datalayer import Extractor, PageError, Report
from epp.framework.endpoint import Endpoint
from epp.framework.plugin import Parameters

_MEMO_LIMIT = 4096


class CoreMetricsParameters(Parameters, frozen=True):
    """Which engine runs at an endpoint, and what its series are called."""

    engine_label_key: str = "llm-d.ai/engine-type"
    """The endpoint label whose value names the engine."""
    default_engine: str = "vllm"
    """The engine of endpoints without that label. One whose page has nothing of this engine is read as the built-in
    engine that its series belong to."""
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
    """Reads queue, batch, KV cache, prefix cache and adapters from an engine's metrics page.

    Queues and counters of data-parallel ranks are added up; of their KV usages the highest counts. A signal that its
    engine has a series for, but this page has not, becomes unknown again, never 0. Built in are vllm, sglang,
    trtllm-serve (its page is at /prometheus/metrics), triton-tensorrt-llm and triton.
    """

    plugin_type = "core-metrics-extractor"

    def __init__(
        self, parameters: CoreMetricsParameters | None = None, *, name: str = "", clock: Clock | None = None
    ) -> None:
        super().__init__(parameters, name=name, clock=clock)
        configs = {**BUILT_IN, **{config.name: config for config in self.parameters.engine_configs}}
        self._engines = {engine: compile_engine(config) for engine, config in configs.items()}
        self._default = self._engines[self.parameters.default_engine]
        self._recognised: dict[str, Engine] = {}
        self.writes = tuple(dict.fromkeys(datum for engine in self._engines.values() for datum in engine.fills))

    def extract(self, page: bytes, endpoint: Endpoint) -> Report:
        """Return what the page says; raises PageError for a page or an engine that is not understood."""
        name = endpoint.labels.get(self.parameters.engine_label_key)
        engine = self._recognised.get(endpoint.id, self._default) if name is None else self._named(name, endpoint)
        report = engine.read(page)
        if report is None and name is None:
            report = self._recognise(page, endpoint, engine)
        if report is None:
            raise PageError(self._hint(page, self._default if name is None else engine))
        return report

    def _named(self, name: str, endpoint: Endpoint) -> Engine:
        engine = self._engines.get(name)
        if engine is None:
            raise PageError(
                f"endpoint {endpoint.id} has label {self.parameters.engine_label_key}={name}, an engine that is not "
                f"known: use one of {', '.join(sorted(self._engines))}, or describe {name!r} in engineConfigs of "
                f"plugin {self.name!r}"
            )
        return engine

    def _recognise(self, page: bytes, endpoint: Endpoint, tried: Engine) -> Report | None:
        """Read the page as the engine's whose series it has, and the next ones of this endpoint likewise."""
        self._recognised.pop(endpoint.id, None)
        for engine in self._likely(page):
            report = None if engine is tried else engine.read(page)
            if report is not None:
                if engine is not self._default and engine.name != HOST:
                    if len(self._recognised) >= _MEMO_LIMIT:  # endpoints come and go
                        self._recognised.clear()
                    self._recognised[endpoint.id] = engine
                return report
        return None

    def _likely(self, page: bytes) -> Iterator[Engine]:
        yield self._default
        for prefix, _, name in SERIES_PREFIXES:
            if name and _has_series(page, prefix):
                yield self._engines[name]

    def _hint(self, page: bytes, engine: Engine) -> str:
        start = page.lstrip()[:1]
        nothing = f"the page has no series of engine {engine.name!r}"
        if not start:
            return f"{nothing}: it is empty"
        if start in (b"{", b"["):
            return f"{nothing}: it is JSON, not Prometheus text (TensorRT-LLM has the text at /prometheus/metrics)"
        if start == b"<":
            return f"{nothing}: it is HTML or XML, not Prometheus text; check the source's path and port"
        for prefix, other, _ in SERIES_PREFIXES:
            if _has_series(page, prefix):
                return (
                    f"{nothing}, but some of {other}: set the endpoint's label {self.parameters.engine_label_key} "
                    f"and, unless built in, describe the engine in engineConfigs"
                )
        return (
            f"{nothing}: looked for {', '.join(engine.series_names)}; is the path right, are the metrics switched on?"
        )


def _has_series(page: bytes, prefix: bytes) -> bool:
    return page.startswith(prefix) or b"\n" + prefix in page
