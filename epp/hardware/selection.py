# SPDX-License-Identifier: Apache-2.0
"""Determines the accelerators that may serve a request, from configuration, objects and request headers."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import translate
from math import inf
from typing import Literal, NamedTuple, cast

import msgspec
import structlog

from epp.framework import (
    ACCELERATOR_SELECTION,
    Admitter,
    Candidates,
    ConfigurationError,
    DataKey,
    Endpoint,
    Headers,
    Name,
    Producer,
    Request,
)
from epp.framework.accelerators.requirements import SelectionParameters
from epp.framework.accelerators.selection import ANY, SERVED_CLASS, Refusal, Selection, Selections, combined, tightened
from epp.framework.errors import BadRequestError
from epp.framework.headers import ACCELERATOR_PREFIX, OBJECTIVE
from epp.framework.input_errors import read_parameters
from epp.framework.messages import printable, quoted
from epp.framework.suggestions import hint_at
from epp.hardware.objectives import ObjectFollower, Objectives, ObjectParameters
from epp.kube.objects.ome import class_names
from epp.kube.objects.ome_services import SERVICE_LABEL

_MOST_CHARACTERS = 300
"""Maximum length of an error, which may quote the value of a header."""
_HEADER_OF_FIELD: Mapping[str, str] = {
    "classes": "class",
    "families": "family",
    "vendors": "vendor",
    "kinds": "kind",
    "models": "model",
    "resources": "resource",
    "mig_profiles": "mig-profile",
}
"""Keyed by allow list of Selection."""

_log = structlog.get_logger()
_MOST_PROBLEMS = 5
"""Maximum number of errors in a response."""
_LOG_SECONDS = 10.0
"""Minimum time between two log lines about ignored headers, which clients can send in any number."""
_MOST_LAYERS = 1024
"""Maximum number of cached combinations of layers."""


def _list(text: str) -> object:
    return [part.strip() for part in text.split(",")]


def _parser(kind: Callable[[str], object], fault: str) -> Callable[[str], object]:
    """Return a parser of the value of a header; `fault` is the error for other texts."""

    def read(text: str) -> object:
        try:
            return kind(text.strip())
        except (ValueError, KeyError):
            raise ConfigurationError(f"{text!r} is {fault}") from None

    return read


_number, _whole_number = _parser(float, "not a number"), _parser(int, "not a whole number")
_flag = _parser(lambda text: {"true": True, "false": False}[text.lower()], "neither true nor false")
_FIELDS: Mapping[str, tuple[str, Callable[[str], object]]] = {
    "class": ("acceleratorClasses", _list),
    "exclude-class": ("excludedClasses", _list),
    "vendor": ("vendors", _list),
    "family": ("architectureFamilies", _list),
    "model": ("models", _list),
    "kind": ("kinds", _list),
    "resource": ("resources", _list),
    "features": ("requiredFeatures", _list),
    "min-memory": ("minMemory", str.strip),
    "max-memory": ("maxMemory", str.strip),
    "min-total-memory": ("minTotalMemory", str.strip),
    "min-compute-capability": ("minArchitectureVersion", str.strip),
    "max-cost-per-hour": ("maxCostPerHour", _number),
    "max-cost-per-million-tokens": ("maxCostPerMillionTokens", _number),
    "mig-profile": ("migProfiles", _list),
    "exclude-mig-profile": ("excludedMigProfiles", _list),
    "min-compute-slices": ("minComputeSlices", _whole_number),
    "whole-device": ("wholeDeviceOnly", _flag),
    "min-memory-bandwidth": ("minMemoryBandwidthGBps", _number),
    "policy": ("policy", str.strip),
    "strategy": ("strategy", str.strip),
    "precisions": ("preferredPrecisions", _list),
    "preference": ("preferenceOrder", _list),
}
"""Header name without the prefix -> the parameter, and the parser of the value."""


def read_headers(headers: Headers) -> tuple[Selection, tuple[str, ...]]:
    """Return bounds and preferences in the headers, and errors; repeated headers form one list."""
    requested, problems = ANY, []
    for name in headers:
        if not name.startswith(ACCELERATOR_PREFIX):
            continue
        known = _FIELDS.get(name.removeprefix(ACCELERATOR_PREFIX))
        if known is None:
            problems.append(
                f"header {quoted(name)} is not known; {hint_at(name, [ACCELERATOR_PREFIX + one for one in _FIELDS])}"
            )
            continue
        field, read = known
        value = ",".join(text for other, text in headers.fields() if other == name)
        try:
            parameters = read_parameters(SelectionParameters, {field: read(value)})
            requested = combined(requested, cast("SelectionParameters", parameters).selection())
        except ConfigurationError as error:
            problem = str(error)
            if problem.startswith(field):  # the client has sent a header, not the parameter
                rest = problem.removeprefix(field)
                problem = rest.removeprefix(": ") if rest.startswith(": ") else f"it{rest}"
            problems.append(printable(f"header {name!r}: {problem}", _MOST_CHARACTERS))
    return requested, tuple(problems)


class SelectionLayer(SelectionParameters, frozen=True):
    """One layer of bounds and preferences: the parameters of `accelerator-filter` without `onUnknown` and `cel`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.fallback_on_empty:
            raise ValueError("fallbackOnEmpty is for filters: set it on accelerator-filter")


class AcceleratorSelectionParameters(ObjectParameters, frozen=True):
    """Layers of bounds and preferences, lowest first; layers of objects are between `models` and `components`."""

    defaults: SelectionLayer = SelectionLayer()
    """Bounds and preferences of all requests, as in `accelerator-filter`."""
    models: dict[str, SelectionLayer] = msgspec.field(default_factory=dict)
    """Bounds and preferences by model, or by a pattern such as `llama-*`. An exact name precedes patterns; the first
    matching pattern precedes the others."""
    components: dict[str, SelectionLayer] = msgspec.field(default_factory=dict)
    """Bounds and preferences by scheduling profile, such as `prefill` and `decode`."""
    engine_profile: Name = "prefill"
    """Profile for bounds of the engine of an InferenceService with a decoder; otherwise they apply to all profiles."""
    decoder_profile: Name = "decode"
    """Profile to which bounds of the decoder of an InferenceService apply."""
    allow_request_overrides: bool = False
    """Accept headers `x-epp-accelerator-*`, within the bounds of the layers."""
    request_overrides: Literal["strict", "lenient"] = "strict"
    """Treatment of malformed headers and of headers beyond the bounds: `strict` rejects the request with status 400,
    `lenient` ignores the header."""


class _Key(NamedTuple):
    """Key of the layers of a request; clients cannot create new values."""

    pattern: str
    services: tuple[str, ...]
    objective: str


class AcceleratorSelectionProducer(
    ObjectFollower[AcceleratorSelectionParameters],
    Producer[AcceleratorSelectionParameters],
    Admitter[AcceleratorSelectionParameters],
):
    """Publishes bounds and preferences for accelerators, one selection for each profile.

    The layers are, lowest first, `defaults`, `models`, objects, `components` with the overrides for engine and decoder
    of an InferenceService, and the request headers. A list or name in a higher layer replaces that of a lower one;
    exclusions are united; the stricter of two minimums or caps applies. Headers can only tighten bounds: their lists
    are intersected with those of the layers.

    The layers of objects are the annotation `ome.io/cost-threshold` of the InferencePool (US dollars an hour for an
    endpoint), the `acceleratorRequirements` of the ServingRuntime or ClusterServingRuntime, the `acceleratorSelector`
    of the InferenceService and its annotations, both in the form of OME's API or of its proposal (OEP-0003), and the
    annotations of the InferenceObjective that the request names: `ome.io/accelerator-class`, `ome.io/cost-threshold`
    and `ome.io/selection-strategy`. A request belongs to the InferenceService with its model as base model or name, or
    to the only service with pods (by the label `ome.io/inferenceservice`) among the endpoints. `accelerator-filter`
    removes endpoints beyond the bounds, and `accelerator-policy-scorer` ranks by policy, strategy and preferred
    classes. The `acceleratorConfig` of a runtime is for starting servers: its classes and parallelism are checked, but
    it does not bound requests.

    The headers are `x-epp-accelerator-` and `class`, `exclude-class`, `vendor`, `family`, `model`, `kind`, `resource`,
    `features`, `min-memory`, `max-memory`, `min-total-memory`, `min-compute-capability`, `max-cost-per-hour`,
    `max-cost-per-million-tokens`, `mig-profile`, `exclude-mig-profile`, `min-compute-slices`, `whole-device`,
    `min-memory-bandwidth`, `policy`, `strategy`, `precisions` or `preference`, with comma-separated lists. The picker
    removes them from the request. All instances write the same output, so configure one producer of this type.
    """

    plugin_type = "accelerator-selection-producer"
    writes = (ACCELERATOR_SELECTION,)

    def setup(self) -> None:
        super().setup()
        self._problems_key: DataKey[tuple[str, ...]] = DataKey("accelerator-override-problems", producer=self.name)
        defaults = self.parameters.defaults.selection()
        self._configured = {"": defaults} | {
            model: combined(defaults, layer.selection()) for model, layer in self.parameters.models.items()
        }
        self._components = {name: layer.selection() for name, layer in self.parameters.components.items()}
        self._selections = (*self._configured.values(), *self._components.values())
        if any(selection.class_stickiness_seconds for selection in self._selections):
            self.reads = (SERVED_CLASS,)  # for scorers: its default producer is added
        self._next_logged_at = -inf
        self._patterns = [(re.compile(translate(model)), model) for model in self.parameters.models]
        self._used: tuple[Objectives, dict[_Key, Selections]] = (self.objectives, {})
        """Cached layers, and the objects that they were built from."""

    @property
    def selections(self) -> Iterable[Selection]:
        """Selections of the configuration and of all objects."""
        objects = self.objectives
        services = (part for each in objects.services.values() for part in (each.general, each.prefill, each.decode))
        return (*self._selections, *services, *objects.by_objective.values(), objects.pool)

    @property
    def accelerator_names(self) -> Sequence[str]:
        named = (name for selection in self._selections for name in (*class_names(selection), *selection.models))
        return tuple(dict.fromkeys((*named, *self.objectives.classes)))

    @property
    def without_prices(self) -> str:
        if any(selection.caps_cost for selection in self._selections):
            return "filters drop all endpoints where these bounds cap the price, unless onUnknown keeps them"
        by_price = any(selection.policy == "cheapest" for selection in self._selections)
        return "the policy Cheapest is no preference" if by_price else ""

    def produce(self, request: Request, candidates: Candidates) -> None:
        layers = self._layers(request, candidates)
        has_headers = any(name.startswith(ACCELERATOR_PREFIX) for name in request.headers)
        if not (has_headers and self.parameters.allow_request_overrides):
            request.put(ACCELERATOR_SELECTION, layers)
            return
        requested, problems = read_headers(request.headers)
        default = tightened(layers.default, requested)
        profiles = {profile: tightened(selection, requested) for profile, selection in layers.by_profile.items()}
        found = {"": default, **profiles}
        problems += tuple(dict.fromkeys(_message(name, one) for name, each in found.items() for one in each.refused))
        if problems:
            request.put(self._problems_key, problems)
            self._log_ignored(request, problems)
        by_profile = {profile: each.selection for profile, each in profiles.items()}
        request.put(ACCELERATOR_SELECTION, Selections(default.selection, by_profile, problems))

    def admit(self, request: Request, candidates: Candidates) -> None:  # noqa: ARG002  as admitters are called
        """Reject a request with invalid headers if `requestOverrides` is strict."""
        problems = request.get(self._problems_key)
        if problems and self.parameters.request_overrides == "strict":
            raise BadRequestError("; ".join(problems[:_MOST_PROBLEMS]))

    def _log_ignored(self, request: Request, problems: Sequence[str]) -> None:
        now = self.clock.now()
        if self.parameters.request_overrides == "strict" or request.dry_run or now < self._next_logged_at:
            return
        self._next_logged_at = now + _LOG_SECONDS
        _log.warning(
            "headers of a request are ignored: requestOverrides is lenient",
            plugin=self.name,
            request_id=printable(request.id),
            problems=list(problems[:_MOST_PROBLEMS]),
        )

    def _layers(self, request: Request, candidates: Candidates) -> Selections:
        objects, known = self._used
        if objects is not self.objectives:
            objects, known = self._used = (self.objectives, {})
        services: tuple[str, ...] = ()
        if objects.services:
            labels = candidates.snapshot.endpoints.derive(_service_labels)
            services = objects.services_of((request.model, request.body.model), labels)
        objective = request.objective or request.headers.first_of(*OBJECTIVE) or ""
        key = _Key(self._pattern(request.model), services, objective if objective in objects.by_objective else "")
        found = known.get(key)
        if found is None:
            if len(known) >= _MOST_LAYERS:  # clients name models and objectives
                known.clear()
            found = known[key] = self._build(key, objects)
        return found

    def _pattern(self, model: str) -> str:
        if model in self.parameters.models:
            return model
        return next((name for pattern, name in self._patterns if pattern.match(model)), "")

    def _build(self, key: _Key, objects: Objectives) -> Selections:
        general = combined(self._configured[key.pattern], objects.pool)
        services = [objects.services[name] for name in key.services]
        for service in services:
            general = combined(general, service.general)
        if key.objective:
            general = combined(general, objects.by_objective[key.objective])
        overrides = dict(self._components)
        for service in services:
            for profile, override in (
                (self.parameters.engine_profile, service.prefill),
                (self.parameters.decoder_profile, service.decode),
            ):
                if override != ANY:
                    overrides[profile] = combined(overrides.get(profile, ANY), override)
        return Selections(general, {profile: combined(general, override) for profile, override in overrides.items()})


def _service_labels(endpoints: tuple[Endpoint | None, ...]) -> frozenset[str]:
    """Return the services with pods among the endpoints; an empty name stands for endpoints without a service."""
    return frozenset(each.labels.get(SERVICE_LABEL, "") for each in endpoints if each is not None)


def _message(profile: str, refusal: Refusal) -> str:
    where = f" in profile {profile!r}" if profile else ""
    header = ACCELERATOR_PREFIX + _HEADER_OF_FIELD[refusal.field]
    return (
        f"header {header!r} asks for {printable(', '.join(refusal.wished))}, "
        f"which is not allowed{where}{': use ' if refusal.allowed else ''}{', '.join(refusal.allowed)}"
    )
