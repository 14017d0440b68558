# SPDX-License-Identifier: Apache-2.0
"""The configuration file as typed models: the ecosystem's own format, `EndpointPickerConfig`."""

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, model_validator
from pydantic.alias_generators import to_camel

from epp.framework.quantities import parse_duration, parse_quantity

API_VERSION = "llm-d.ai/v1alpha1"
LEGACY_API_VERSION = "inference.networking.x-k8s.io/v1alpha1"
KIND = "EndpointPickerConfig"
BAND_REQUESTS = 5000
"""Most requests that wait at one priority, where the file says nothing else."""
BAND_BYTES = 10**9
"""Most bytes of their bodies."""


def _read_quantity(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise ValueError("write a number, or a quantity such as 10Gi")  # noqa: TRY004  pydantic reports ValueError
    return parse_quantity(str(value))


def _read_duration(value: object) -> object:
    if not isinstance(value, str):
        raise ValueError("write a duration such as 60s or 1m30s")  # noqa: TRY004  pydantic reports ValueError
    return parse_duration(value)


def _read_age(value: object) -> object:
    seconds = _read_duration(value)
    if seconds == 0:
        raise ValueError("write a duration above 0, such as 5s")
    return seconds


Quantity: TypeAlias = Annotated[
    int,
    BeforeValidator(_read_quantity),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string"}]}),
]
Seconds: TypeAlias = Annotated[
    float, BeforeValidator(_read_duration), WithJsonSchema({"type": "string", "examples": ["60s", "1m30s"]})
]
PositiveSeconds: TypeAlias = Annotated[
    float, BeforeValidator(_read_age), WithJsonSchema({"type": "string", "examples": ["5s", "500ms"]})
]
StaleRule: TypeAlias = Literal["Ignore", "Neutral", "Drop"]
Cause: TypeAlias = Literal["constraint", "availability", "stale", "saturation", "unstated"]


class _Model(BaseModel):
    """Keys are camelCase, unknown ones are refused, and nothing is taken for what it is not."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, alias_generator=to_camel, use_attribute_docstrings=True
    )

    @model_validator(mode="before")
    @classmethod
    def _leave_out_empty(cls, content: object) -> object:
        """Take a key without a value for one that is left out."""
        if not isinstance(content, dict):
            return content
        known = {field.alias for field in cls.model_fields.values()}
        return {key: value for key, value in content.items() if value is not None or key not in known}


class PluginSpec(_Model):
    """One plugin instance."""

    type: str
    """A registered plugin type, or `module:Class` where that is allowed."""
    name: str = ""
    """Unique; the type where left out."""
    parameters: dict[str, Any] | None = None
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
    on_error: Literal["Skip", "Fail"] | None = None
    """Whether the profile continues when the plugin raises; by default, scorers are skipped and filters fail it."""
    stale_after: PositiveSeconds | None = None
    """Age from which the load that an endpoint reported is stale for this plugin; by default that of dataLayer."""
    on_stale: StaleRule | None = None
    """How this filter or scorer is shown stale endpoints; by default as dataLayer says."""


class SchedulingProfile(_Model):
    """Filters, scorers and a picker under a name."""

    name: str = Field(min_length=1)
    plugins: list[WeightedRef] = Field(default_factory=list)
    fail_open: bool | list[Cause] = False
    """Where the filters would leave no candidate, serve from those that remain if filters drop nothing for these causes
    (`true` for all): `constraint`, `availability`, `stale`, `saturation` and `unstated`. Screeners and the gateway's
    subset always hold."""
    constraint_status: Literal[400, 404, 429, 503] = 429
    """Status of requests that are refused because no endpoint meets the constraints of a filter."""


class Source(PluginRef):
    """A data source and the extractors that read its pages."""

    extractors: list[PluginRef] = Field(default_factory=list)


class DiscoveryRefs(_Model):
    """Sources of endpoints and of other replicas."""

    endpoints: PluginRef | None = None
    """Source of endpoints."""
    peers: PluginRef | None = None
    """Source of other replicas."""
    plugin_ref: str = ""
    """The same as `endpoints`, as files before llm-d.ai/v1 write it."""


class CrossReplica(_Model):
    """Exchange of endpoint data between replicas."""

    syncer_plugin_ref: str = ""
    """What keeps replicas in step."""
    sync_interval: Seconds | None = None
    """Time between two exchanges."""
    publish_timeout: Seconds | None = None
    """How long one exchange may take."""


class DataLayer(_Model):
    """Where knowledge of the endpoints comes from."""

    inject_defaults: bool = True
    """Whether engine metrics are scraped without a data source that asks for them."""
    stale_after: PositiveSeconds | None = None
    """Age from which the load that an endpoint reported (`waiting`, `running`, `kv_usage`) is stale; by default, it
    never is. An endpoint that never reported is not stale."""
    on_stale: StaleRule | None = None
    """How filters and scorers are shown stale endpoints: `Ignore`, with their last load; `Neutral`, the default, as
    endpoints whose load is unknown; `Drop`, not at all, and where all are stale, requests are refused with 503."""
    sources: list[Source] = Field(default_factory=list)
    discovery: DiscoveryRefs | None = None
    """Source of endpoints; without it, the command line lists them."""
    cross_replica: CrossReplica | None = None
    """Exchange of endpoint data between replicas."""
    peer_discovery: PluginRef | None = None
    """Before llm-d.ai/v1: discovery.peers."""
    cross_replica_syncer_plugin_ref: str = ""
    """Before llm-d.ai/v1: crossReplica.syncerPluginRef."""
    cross_replica_sync_interval: Seconds | None = None
    """Before llm-d.ai/v1: crossReplica.syncInterval."""
    cross_replica_publish_timeout: Seconds | None = None
    """Before llm-d.ai/v1: crossReplica.publishTimeout."""


class PriorityBandPolicies(_Model):
    """Limits and order of what waits at one priority."""

    max_bytes: Quantity = BAND_BYTES
    """Most bytes of the bodies of requests that wait; 0 for the default."""
    max_requests: Quantity = BAND_REQUESTS
    """Most requests that wait; 0 for the default."""
    default_request_ttl: Seconds | None = Field(default=None, alias="defaultRequestTTL")
    """How long a request waits, 0s for as long as it takes; by default as flowControl says."""
    fairness_policy_ref: str = "global-strict-fairness-policy"
    """The policy that chooses the flow whose request is next."""
    ordering_policy_ref: str = "fcfs-ordering-policy"
    """The policy that chooses the next request of a flow."""


class PriorityBand(PriorityBandPolicies):
    """The same for one priority."""

    priority: int
    """That of requests, from their InferenceObjective; the higher goes first."""


class FlowControl(_Model):
    """Queues in front of full endpoints; without effect unless feature gate flowControl is on."""

    max_bytes: Quantity = 0
    """Most bytes of the bodies of all requests that wait; 0 for no limit."""
    max_requests: Quantity = 0
    """Most requests that wait, of all priorities together; 0 for no limit."""
    default_request_ttl: Seconds = Field(default=60.0, alias="defaultRequestTTL")
    """How long a request waits; 0s for as long as it takes."""
    no_endpoint_request_ttl: Seconds | None = Field(default=None, alias="noEndpointRequestTTL")
    """The same while the pool has no endpoint; by default defaultRequestTTL."""
    default_priority_band: PriorityBandPolicies | None = None
    """For priorities of 0 and more that are not among priorityBands."""
    default_negative_priority_band: PriorityBandPolicies | None = None
    """For priorities below 0 that are not among priorityBands; by default defaultPriorityBand."""
    priority_bands: list[PriorityBand] = Field(default_factory=list)
    """One for each priority with limits or policies of its own."""
    usage_limit_policy_plugin_ref: str = "static-usage-limit-policy"
    """The policy that says how full an endpoint may be for a priority."""
    saturation_detector: PluginRef | None = None
    """The plugin that says how full an endpoint is; by default utilization-detector."""
    enable_eviction: bool = False
    """Whether requests under way make room for others."""


class RequestHandler(_Model):
    """How request bodies are read."""

    parsers: list[PluginRef] = Field(default_factory=list)
    propagate_priority: bool = False
    """Whether a request's priority is written into its body."""


class EndpointPickerConfig(_Model):
    """The whole file."""

    api_version: Literal["llm-d.ai/v1", "llm-d.ai/v1alpha1", "inference.networking.x-k8s.io/v1alpha1"]
    """From the newest to the oldest; keys that only one of them has are taken in all of them."""
    kind: Literal["EndpointPickerConfig"]
    feature_gates: list[str] = Field(default_factory=list)
    """`gate`, `gate=true` or `gate=false`."""
    plugins: list[PluginSpec] = Field(default_factory=list)
    """All instances, by name."""
    scheduling_profiles: list[SchedulingProfile] = Field(default_factory=list)
    """Without any, one named `default` of all filters, scorers and pickers."""
    data_layer: DataLayer = Field(default_factory=DataLayer)
    flow_control: FlowControl | None = None
    request_handler: RequestHandler = Field(default_factory=RequestHandler)
    saturation_detector: PluginRef | None = None
    """Deprecated: flowControl.saturationDetector."""
    parser: PluginRef | None = None
    """Deprecated: requestHandler.parsers."""
