# SPDX-License-Identifier: Apache-2.0
"""The configuration file, `EndpointPickerConfig`: typed models and the JSON schema."""

import inspect
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag, WithJsonSchema, model_validator
from pydantic.alias_generators import to_camel

from epp.framework.quantities import parse_duration, parse_quantity
from epp.framework.registry import Registry
from epp.routing.scheduling.scheduler import MAX_ITERATIONS

API_VERSION = "llm-d.ai/v1alpha1"
LEGACY_API_VERSION = "inference.networking.x-k8s.io/v1alpha1"
KIND = "EndpointPickerConfig"
BAND_REQUESTS = 5000
"""Default limit on waiting requests of one priority."""
BAND_BYTES = 10**9
"""Default limit on the total size of their bodies, in bytes."""
BRANCH = "~"
"""Prefix of path steps that select one of several forms of a value, and are not in the file."""
MOST_SOURCES = 16
"""Maximum number of sources of endpoints of a pool."""
POOL_SOURCE = "pool-discovery"
"""Type of the source with the endpoints that flags name."""
StaleRule: TypeAlias = Literal["Ignore", "Neutral", "Drop"]
Cause: TypeAlias = Literal["constraint", "availability", "stale", "saturation", "unstated"]
WITHOUT_TASK: Mapping[str, str] = dict.fromkeys(
    ("disagg-headers-handler", "prefill-header-handler"),
    "the profile handlers set the headers for disaggregated serving themselves",
)
"""Types of llm-d-router that a file may declare without effect, with the reason."""
NOT_YET = frozenset({"endpoint-pin-screener", "models-responder", "outlen-bucket", "reserve-endpoint", "thunder-agent"})
"""Types of llm-d-router that are not supported yet."""
LARGEST_WRITTEN_OUT = 1e15
"""Whole floats below it are written as integers."""


def _read_quantity(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise ValueError("write a number, or a quantity such as 10Gi")  # noqa: TRY004  pydantic needs ValueError
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


_QUANTITY_SCHEMA = {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string"}]}
Quantity: TypeAlias = Annotated[int, BeforeValidator(_read_quantity), WithJsonSchema(_QUANTITY_SCHEMA)]
Seconds: TypeAlias = Annotated[
    float, BeforeValidator(_read_duration), WithJsonSchema({"type": "string", "examples": ["60s", "1m30s"]})
]
PositiveSeconds: TypeAlias = Annotated[
    float, BeforeValidator(_read_age), WithJsonSchema({"type": "string", "examples": ["5s", "500ms"]})
]


class _Model(BaseModel):
    """Keys are camelCase, unknown keys are refused, types are strict."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, alias_generator=to_camel, use_attribute_docstrings=True
    )

    @model_validator(mode="before")
    @classmethod
    def _leave_out_empty(cls, content: object) -> object:
        """Remove keys without a value."""
        if not isinstance(content, dict):
            return content
        known = {field.alias for field in cls.model_fields.values()}
        return {key: value for key, value in content.items() if value is not None or key not in known}


class PluginSpec(_Model):
    """One plugin instance."""

    type: str
    """A registered plugin type, or `module:Class` if that is allowed."""
    name: str = ""
    """Unique name; by default the type."""
    parameters: dict[str, Any] | None = None
    """Parameters of the type; unknown keys are refused."""

    @property
    def instance_name(self) -> str:
        """The name for references in the file."""
        return self.name or self.type


class PluginRef(_Model):
    """A reference to a plugin instance by name."""

    plugin_ref: str


class WeightedRef(PluginRef):
    """A reference from a profile."""

    weight: float | None = None
    """Only for scorers; 1 by default."""
    on_error: Literal["Skip", "Fail"] | None = None
    """Whether the profile continues when the plugin raises; by default, it skips scorers and fails for filters."""
    stale_after: PositiveSeconds | None = None
    """Age at which the reported load of an endpoint becomes stale for this plugin; by default that of dataLayer."""
    on_stale: StaleRule | None = None
    """View of stale endpoints for this filter or scorer; by default as in dataLayer."""


class SchedulingProfile(_Model):
    """Filters, scorers and a picker under a name."""

    name: str = Field(min_length=1)
    plugins: list[WeightedRef] = Field(default_factory=list)
    fail_open: bool | list[Cause] = False
    """If the filters would leave no candidate, ignore the drops for these causes (`true` for all): `constraint`,
    `availability`, `stale`, `saturation` and `unstated`. Screeners and the gateway's subset always apply."""
    constraint_status: Literal[400, 404, 429, 503] = 429
    """Status of requests that are refused because no endpoint meets the constraints of a filter."""


class Source(PluginRef):
    """A data source and the extractors that read its pages."""

    extractors: list[PluginRef] = Field(default_factory=list)


class NamedSource(PluginRef):
    """One of several sources of endpoints."""

    name: str = Field(default="", max_length=63)
    """Name on `/healthz`, in metrics and in log lines; by default that of the plugin."""
    precedence: int = 0
    """If two sources have an endpoint with the same address, or the same namespace and name, the source with the higher
    precedence is used; among equals, the first in the list."""


_ONE = Tag(f"{BRANCH}one")
_BY_SHAPE = Discriminator(lambda content: f"{BRANCH}{'several' if isinstance(content, list) else 'one'}")
_SEVERAL = Tag(f"{BRANCH}several")
_Several: TypeAlias = Annotated[list[NamedSource], Field(min_length=1, max_length=MOST_SOURCES), _SEVERAL]


class DiscoveryRefs(_Model):
    """Sources of endpoints and of other replicas."""

    endpoints: Annotated[Annotated[NamedSource, _ONE] | _Several, _BY_SHAPE] | None = None
    """Source of endpoints, or a list of them. While one cannot be read, its last endpoints stay, and the others are
    used as before."""
    peers: PluginRef | None = None
    """Source of other replicas."""
    plugin_ref: str = ""
    """Name before llm-d.ai/v1: `endpoints`."""


class CrossReplica(_Model):
    """Exchange of endpoint data between replicas."""

    syncer_plugin_ref: str = ""
    """The plugin that synchronises replicas."""
    sync_interval: Seconds | None = None
    """Time between two exchanges."""
    publish_timeout: Seconds | None = None
    """Timeout of one exchange."""


class DataLayer(_Model):
    """Sources of endpoints and their data."""

    inject_defaults: bool = True
    """Whether engine metrics are scraped without a declared data source."""
    stale_after: PositiveSeconds | None = None
    """Age at which the reported load of an endpoint (`waiting`, `running`, `kv_usage`) becomes stale; by default never.
    An endpoint that never reported is not stale."""
    on_stale: StaleRule | None = None
    """View of stale endpoints for filters and scorers: `Ignore`, with their last load; `Neutral` (default), with
    unknown load; `Drop`, not at all: if all endpoints are stale, requests are refused with 503."""
    sources: list[Source] = Field(default_factory=list)
    discovery: Annotated[Annotated[DiscoveryRefs, _ONE] | _Several, _BY_SHAPE] | None = None
    """Source of endpoints, or a list of them as in `endpoints`; without it, the command line lists endpoints."""
    cross_replica: CrossReplica | None = None
    """Exchange of endpoint data between replicas."""
    peer_discovery: PluginRef | None = None
    """Name before llm-d.ai/v1 of discovery.peers."""
    cross_replica_syncer_plugin_ref: str = ""
    """Name before llm-d.ai/v1 of crossReplica.syncerPluginRef."""
    cross_replica_sync_interval: Seconds | None = None
    """Name before llm-d.ai/v1 of crossReplica.syncInterval."""
    cross_replica_publish_timeout: Seconds | None = None
    """Name before llm-d.ai/v1 of crossReplica.publishTimeout."""


class PriorityBandPolicies(_Model):
    """Limits and order of the requests that wait at one priority."""

    max_bytes: Quantity = BAND_BYTES
    """Maximum total size of the bodies of waiting requests, in bytes; 0 for the default."""
    max_requests: Quantity = BAND_REQUESTS
    """Maximum number of waiting requests; 0 for the default."""
    default_request_ttl: Seconds | None = Field(default=None, alias="defaultRequestTTL")
    """Maximum queueing time of a request, 0s for no limit; by default that of flowControl."""
    fairness_policy_ref: str = "global-strict-fairness-policy"
    """The policy that chooses the flow whose request is next."""
    ordering_policy_ref: str = "fcfs-ordering-policy"
    """The policy that chooses the next request of a flow."""


class PriorityBand(PriorityBandPolicies):
    """Limits and order for one priority."""

    priority: int
    """The priority of requests, from their InferenceObjective; higher priorities go first."""


class FlowControl(_Model):
    """Queues in front of full endpoints; effective if the feature gate flowControl is on."""

    max_bytes: Quantity = 0
    """Maximum total size of the bodies of all waiting requests, in bytes; 0 for no limit."""
    max_requests: Quantity = 0
    """Maximum number of waiting requests of all priorities together; 0 for no limit."""
    default_request_ttl: Seconds = Field(default=60.0, alias="defaultRequestTTL")
    """Maximum queueing time of a request; 0s for no limit."""
    no_endpoint_request_ttl: Seconds | None = Field(default=None, alias="noEndpointRequestTTL")
    """Maximum queueing time of a request while the pool has no endpoint; by default defaultRequestTTL."""
    default_priority_band: PriorityBandPolicies | None = None
    """Band for priorities of 0 and more without an entry in priorityBands."""
    default_negative_priority_band: PriorityBandPolicies | None = None
    """Band for priorities below 0 without an entry in priorityBands; by default defaultPriorityBand."""
    priority_bands: list[PriorityBand] = Field(default_factory=list)
    """Limits and policies of single priorities."""
    usage_limit_policy_plugin_ref: str = "static-usage-limit-policy"
    """The policy that limits the usage of endpoints by priority."""
    saturation_detector: PluginRef | None = None
    """The plugin that computes the usage of an endpoint; by default utilization-detector."""
    enable_eviction: bool = False
    """Whether running requests may be evicted for others."""


class RequestHandler(_Model):
    """Handling of request bodies."""

    parsers: list[PluginRef] = Field(default_factory=list)
    propagate_priority: bool = False
    """Whether a request's priority is written into its body; `openai-parser` has the same parameter."""


class Scheduling(_Model):
    """The loop over profiles."""

    max_iterations: int = Field(default=MAX_ITERATIONS, ge=1, le=1000)
    """Maximum number of calls of the profile handler for one request; a request that needs more fails."""


class EndpointPickerConfig(_Model):
    """The whole file."""

    api_version: Literal["llm-d.ai/v1", "llm-d.ai/v1alpha1", "inference.networking.x-k8s.io/v1alpha1"]
    """Version of the format, the newest first; keys of all versions are accepted in each."""
    kind: Literal["EndpointPickerConfig"]
    feature_gates: list[str] = Field(default_factory=list)
    """`gate`, `gate=true` or `gate=false`."""
    plugins: list[PluginSpec] = Field(default_factory=list)
    """All instances, by name."""
    scheduling_profiles: list[SchedulingProfile] = Field(default_factory=list)
    """By default, one profile `default` with all filters, scorers and pickers."""
    scheduling: Scheduling = Field(default_factory=Scheduling)
    data_layer: DataLayer = Field(default_factory=DataLayer)
    flow_control: FlowControl | None = None
    request_handler: RequestHandler = Field(default_factory=RequestHandler)
    saturation_detector: PluginRef | None = None
    """Deprecated: flowControl.saturationDetector."""
    parser: PluginRef | None = None
    """Deprecated: requestHandler.parsers."""

    @property
    def names_all_endpoints(self) -> bool:
        """Whether the file names all sources of endpoints, so that no flag does."""
        return self.data_layer.discovery is not None and all(spec.type != POOL_SOURCE for spec in self.plugins)


def config_schema(registry: Registry) -> dict[str, Any]:
    """Return the JSON schema of a file, with the parameters of all plugin types that can be loaded."""
    schema = EndpointPickerConfig.model_json_schema(by_alias=True, ref_template="#/$defs/{model}")
    classes, _ = registry.load_all()
    structs = list(dict.fromkeys(cls.parameters_type for cls in classes.values()))  # in the order of the types
    schemas, components = msgspec.json.schema_components(
        structs, schema_hook=lambda _: {"$comment": "anything"}, ref_template="#/$defs/{name}"
    )
    by_struct = dict(zip(structs, schemas, strict=True))
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    definitions = schema["$defs"]
    definitions.update(dict(sorted(components.items())))
    spec = definitions["PluginSpec"]
    spec["properties"]["type"] = {
        "description": spec["properties"]["type"]["description"],
        "anyOf": [{"enum": sorted({*classes, *WITHOUT_TASK})}, {"type": "string", "pattern": "^[\\w.]+:\\w+$"}],
    }
    spec["allOf"] = [
        {
            "if": {"properties": {"type": {"const": name}}, "required": ["type"]},
            "then": {"properties": {"parameters": by_struct[cls.parameters_type]}},
        }
        for name, cls in sorted(classes.items())
    ]
    cleaned: dict[str, Any] = _with_clean_texts(schema)
    return cleaned


def _with_clean_texts(part: Any) -> Any:
    """Return `part` with descriptions without indentation, as in every version of Python.

    Whole floats become integers: whether a limit is 100 or 100.0 depends on the order of imports.
    """
    if isinstance(part, dict):
        clean = {key: _with_clean_texts(value) for key, value in part.items()}
        text = part.get("description")
        return clean | {"description": inspect.cleandoc(text)} if isinstance(text, str) else clean
    if isinstance(part, float) and part.is_integer() and abs(part) < LARGEST_WRITTEN_OUT:
        return int(part)
    return [_with_clean_texts(item) for item in part] if isinstance(part, list) else part
