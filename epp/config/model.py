"""The configuration file as typed models: the ecosystem's own format, `EndpointPickerConfig`."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator
from pydantic.alias_generators import to_camel

from epp.scheduling import OnError

API_VERSIONS = ("llm-d.ai/v1alpha1", "inference.networking.x-k8s.io/v1alpha1")
FEATURE_GATES = ("flowControl", "haPopulateNonLeaderDatastore")


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, alias_generator=to_camel)


class PluginSpec(_Model):
    """One plugin instance."""

    type: str
    """A registered plugin type."""
    name: str = ""
    """Unique; the type where left out."""
    parameters: dict[str, Any] = Field(default_factory=dict)
    """What the type takes; unknown keys are refused."""

    @property
    def instance_name(self) -> str:
        """The name under which the rest of the file refers to it."""
        return self.name or self.type


class PluginRef(_Model):
    """A reference to a plugin instance by name."""

    plugin_ref: str


class WeightedRef(PluginRef):
    """A reference from a profile."""

    weight: float | None = None
    """Only for scorers; 1 where left out."""
    on_error: OnError | None = None
    """What becomes of the profile when the plugin raises; where left out, scorers are skipped and filters fail it."""


class SchedulingProfile(_Model):
    """Filters, scorers and a picker under a name."""

    name: str
    plugins: list[WeightedRef] = Field(default_factory=list)


class Source(PluginRef):
    """A data source and the extractors that read its pages."""

    extractors: list[PluginRef] = Field(default_factory=list)


class DataLayer(_Model):
    """Where knowledge of the endpoints comes from."""

    inject_defaults: bool = True
    """Whether engine metrics are scraped even where no source says so."""
    sources: list[Source] = Field(default_factory=list)
    discovery: PluginRef | None = None
    """Who is in the pool; without it, the command line says."""


class RequestHandler(_Model):
    """How request bodies are read."""

    parsers: list[PluginRef] = Field(default_factory=list)


class EndpointPickerConfig(_Model):
    """The whole file."""

    api_version: Literal["llm-d.ai/v1alpha1", "inference.networking.x-k8s.io/v1alpha1"]
    kind: Literal["EndpointPickerConfig"]
    feature_gates: list[str] = Field(default_factory=list)
    plugins: list[PluginSpec] = Field(default_factory=list)
    scheduling_profiles: list[SchedulingProfile] = Field(default_factory=list)
    data_layer: DataLayer = Field(default_factory=DataLayer)
    request_handler: RequestHandler = Field(default_factory=RequestHandler)

    @field_validator("feature_gates")
    @classmethod
    def _known_gates(cls, gates: list[str]) -> list[str]:
        for gate in gates:
            name, _, value = gate.partition("=")
            if name not in FEATURE_GATES:
                raise ValueError(f"feature gate {name!r} is not known; known are {', '.join(FEATURE_GATES)}")
            if value not in {"", "true", "false"}:
                raise ValueError(f"feature gate {name!r} is {value!r}, which is neither true nor false")
            if name == "flowControl" and value != "false":
                raise ValueError("feature gate 'flowControl' is known, but not supported yet")
        return gates


def default_config() -> EndpointPickerConfig:
    """Return what a picker runs when it is given no configuration: short queues, free KV cache, known prefixes."""
    weights = {"queue-scorer": 2.0, "kv-cache-utilization-scorer": 2.0, "prefix-cache-scorer": 3.0}
    return EndpointPickerConfig.model_validate(
        {
            "apiVersion": API_VERSIONS[0],
            "kind": "EndpointPickerConfig",
            "plugins": [{"type": name} for name in weights],
            "schedulingProfiles": [
                {"name": "default", "plugins": [{"pluginRef": name, "weight": weights[name]} for name in weights]}
            ],
        }
    )
