# SPDX-License-Identifier: Apache-2.0
"""InferencePool, InferencePoolImport, InferenceObjective and InferenceModelRewrite."""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import Meta

from epp.framework.limits import Name, Port
from epp.kube.objects.base import Object, Part, convert, with_fields

_OBJECTIVE, _REWRITE = "InferenceObjective", "InferenceModelRewrite"
GROUP = "llm-d.ai"
LEGACY_GROUP = "inference.networking.x-k8s.io"
"""Former group of objectives and rewrites."""
POOL_GROUP = "inference.networking.k8s.io"
POLICY_KINDS = frozenset((group, kind) for group in (GROUP, LEGACY_GROUP) for kind in (_OBJECTIVE, _REWRITE))
INFERENCE_KINDS = POLICY_KINDS | {(POOL_GROUP, "InferencePool")}

_MOST_PORTS = 8
H2C = "kubernetes.io/h2c"
Priority: TypeAlias = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]


class TargetPort(Part, frozen=True, kw_only=True):
    number: Port


class InferencePool(Object, frozen=True, kw_only=True):
    match_labels: Mapping[str, str] = msgspec.field(name="spec.selector.matchLabels")
    target_ports: tuple[TargetPort, ...] = msgspec.field(name="spec.targetPorts")
    app_protocol: Literal["http", "kubernetes.io/h2c"] = msgspec.field(default="http", name="spec.appProtocol")
    """`kubernetes.io/h2c` is HTTP/2 without TLS."""
    picker_port: Port | None = msgspec.field(default=None, name="spec.endpointPickerRef.port.number")
    """Port of the Service of the pickers; None if unset."""

    @property
    def ports(self) -> tuple[int, ...]:
        """Ports of each pod: 1 to 8 distinct numbers."""
        return tuple(port.number for port in self.target_ports)


class PoolReference(Part, frozen=True, kw_only=True):
    """A reference to a pool in the same namespace."""

    group: str = POOL_GROUP
    name: str


class PoolMember(Object, frozen=True, kw_only=True):
    """An object for the referenced pools; without a reference, for all pools of its namespace."""

    api_version: str = ""
    pool_ref: PoolReference | None = msgspec.field(default=None, name="spec.poolRef")
    pool_refs: tuple[PoolReference, ...] = msgspec.field(default=(), name="spec.poolRefs")
    pool_selector: Any = msgspec.field(default=None, name="spec.poolSelector")

    @property
    def pools(self) -> tuple[PoolReference, ...]:
        """References to pools in `poolRef` and `poolRefs`."""
        return (*(() if self.pool_ref is None else (self.pool_ref,)), *self.pool_refs)

    @property
    def is_legacy(self) -> bool:
        return self.api_version.startswith(f"{LEGACY_GROUP}/")


class InferenceObjective(PoolMember, frozen=True, kw_only=True):
    """A priority for the requests that name the objective."""

    priority: Priority = msgspec.field(default=0, name="spec.priority")
    """Requests with a negative priority are rejected while the pool is saturated."""


class WeightedModel(Part, frozen=True, kw_only=True):
    """Replacement model, and its share of the requests."""

    model_rewrite: Name
    weight: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None


class RewriteRule(Part, frozen=True, kw_only=True):
    """A rule for requests for these models; for all models if the list is empty."""

    models: tuple[str, ...] = ()
    targets: tuple[WeightedModel, ...] = ()
    """Empty for an invalid rule."""
    fault: str = ""
    """Error in the targets: field, value and remedy; empty if they are valid."""


class InferenceModelRewrite(PoolMember, frozen=True, kw_only=True):
    """Rules that replace the model of a request.

    A rule with invalid targets keeps its place, so that its requests do not match a later rule.
    """

    rules: tuple[RewriteRule, ...] = ()


M = TypeVar("M", bound=PoolMember)


class _RawRewrite(PoolMember, frozen=True, kw_only=True):
    rules: tuple[Any, ...] = msgspec.field(name="spec.rules")


class _ModelMatch(Part, frozen=True, kw_only=True):
    type: Literal["Exact"] = "Exact"
    value: Name


class _Match(Part, frozen=True, kw_only=True):
    model: _ModelMatch


class _Matches(Part, frozen=True, kw_only=True):
    matches: tuple[_Match, ...] = ()


class _Targets(Part, frozen=True, kw_only=True):
    targets: Annotated[tuple[WeightedModel, ...], Meta(min_length=1)]


def read_inference_pool(document: object) -> InferencePool:
    pool = convert(document, InferencePool)
    numbers = pool.ports
    if not 1 <= len(numbers) <= _MOST_PORTS:
        raise ValueError(f"spec.targetPorts has {len(numbers)} ports: write 1 to {_MOST_PORTS}")
    for index, number in enumerate(numbers):
        if number in numbers[:index]:
            place = f"spec.targetPorts[{index}].number"
            raise ValueError(f"{place} is {number}, which is repeated: write each port once")
    return pool


def read_inference_objective(document: object) -> InferenceObjective:
    return _with_known_pools(convert(document, InferenceObjective))


def read_inference_model_rewrite(document: object) -> InferenceModelRewrite:
    """Return the object; raises ValueError, also for a rule with invalid matches."""
    raw = _with_known_pools(convert(document, _RawRewrite))
    rules = tuple(_rule(rule, f"spec.rules[{index}]") for index, rule in enumerate(raw.rules))
    return with_fields(InferenceModelRewrite, raw, rules=rules)


def rewrite_faults(found: InferenceModelRewrite) -> Iterable[str]:
    """Return the errors in the rules; none for a rewrite that is being deleted."""
    return () if found.metadata.is_terminating else [rule.fault for rule in found.rules if rule.fault]


def _with_known_pools(member: M) -> M:
    if member.pool_selector is not None and not member.pools:
        raise ValueError("spec.poolSelector is not supported: write poolRef with the name of the pool")
    return member


def _rule(data: object, place: str) -> RewriteRule:
    models = tuple(each.model.value for each in convert(data, _Matches, place).matches)
    try:
        return RewriteRule(models=models, targets=convert(data, _Targets, place).targets)
    except ValueError as error:
        return RewriteRule(models=models, fault=str(error))


class Exporter(Part, frozen=True, kw_only=True):
    name: str


class ImportController(Part, frozen=True, kw_only=True):
    exporting_clusters: tuple[Exporter, ...] = ()


class InferencePoolImport(Object, frozen=True, kw_only=True):
    """A pool that other clusters export, as described by controllers in this cluster."""

    controllers: tuple[ImportController, ...] = msgspec.field(default=(), name="status.controllers")
    exporters: tuple[Exporter, ...] = msgspec.field(default=(), name="status.clusters")
    """Clusters in an earlier version of the proposal, without controllers."""

    @property
    def clusters(self) -> tuple[str, ...]:
        """Distinct clusters that export the pool."""
        found = [each for controller in self.controllers for each in controller.exporting_clusters]
        return tuple(dict.fromkeys(each.name for each in (*found, *self.exporters) if each.name))
