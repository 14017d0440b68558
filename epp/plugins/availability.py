# SPDX-License-Identifier: Apache-2.0
"""Filter by accelerator state, and producer of the accelerator class that last served a session or tenant."""

from collections.abc import Iterable, Mapping
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, field

from epp.framework import (
    ACCELERATOR,
    AcceleratorTag,
    Candidates,
    DropCause,
    Filter,
    FilterParameters,
    Mask,
    NonNegative,
    PreRequest,
    Producer,
    Request,
    Share,
    Snapshot,
    tag_mask,
)
from epp.framework.accelerators.requirements import Memory, read_memory
from epp.framework.accelerators.selection import SERVED_CLASS, class_of
from epp.framework.accelerators.tag import (
    ISOLATION_MODE,
    PARTITION_TEMPLATE,
    PHASE,
    TFLOPS_FREE,
    TFLOPS_USED,
    USED_BY,
    VIRTUAL,
    VRAM_FREE,
    VRAM_USED,
    Device,
    Routability,
)
from epp.framework.plugin import Datum, Parameters
from epp.framework.request import DEFAULT_FLOW
from epp.framework.result import SchedulingResult
from epp.framework.session_affinity import Bindings, SessionIds, session_digest
from epp.framework.sharing import Outbox, Shareable

_RUNNING, _PENDING = "Running", "Pending"
_NO_OTHER_USER = (None, "tensor-fusion")
_CAUSES = (DropCause.AVAILABILITY, DropCause.CONSTRAINT)


class AcceleratorAvailabilityParameters(FilterParameters, frozen=True):
    """Conditions of availability."""

    on_unknown: Literal["Pass", "Fail"] = "Pass"
    """Treatment of endpoints whose accelerator state is unknown: `Pass` keeps them, `Fail` drops them."""
    on_unhealthy: Literal["Drain", "Ignore"] = "Drain"
    """Treatment of endpoints with a device reported unhealthy: `Drain` drops them, `Ignore` keeps them."""
    allow_pending: bool = False
    """Keep endpoints whose accelerator is in phase Pending and not ready."""
    isolation_modes: tuple[str, ...] = ()
    """Keep only accelerators of these TensorFusion isolation modes: `soft`, `hard`, `partitioned`."""
    used_by: tuple[str, ...] = ()
    """Keep only accelerators used by these systems, as in TensorFusion's `usedBy`: `tensor-fusion`."""
    partition_templates: tuple[str, ...] = ()
    """Keep only accelerators partitioned by one of these templates."""
    device_indices: tuple[int, ...] = ()
    """Keep only endpoints whose devices all have one of these indices on their node."""
    max_vram_used: Share = 1.0
    """Maximum share of an accelerator's memory allocated by TensorFusion; 1 for no bound."""
    max_tflops_used: Share = 1.0
    """Maximum share of an accelerator's TFLOPS allocated by TensorFusion; 1 for no bound."""
    min_free_vram: Memory | None = None
    """Minimum accelerator memory that TensorFusion has not allocated: a quantity such as `8Gi`, or a number of GiB."""
    min_free_tflops: NonNegative = 0.0
    """Minimum TFLOPS of its accelerators that TensorFusion has not allocated."""
    use_virtual_capacity: bool = False
    """Compare shares and amounts with the virtual capacity of nodes that TensorFusion overcommits."""
    attributes: dict[str, Annotated[tuple[str, ...], Meta(min_length=1)]] = field(default_factory=dict)
    """Keep only accelerators on which each of these attributes, `domain/name`, has one of the values listed."""

    def __post_init__(self) -> None:
        read_memory("minFreeVram", self.min_free_vram)


class AcceleratorAvailabilityFilter(Filter[AcceleratorAvailabilityParameters]):
    """Drops an endpoint if its accelerators are draining, blocked or unhealthy.

    A device is unhealthy if it is reported as such, or has a taint of effect NoExecute; taints of effect NoSchedule are
    left to scorers. Requests in flight continue at a dropped endpoint. The other parameters are bounds; `onUnknown`
    applies if the bounded value is unknown.
    """

    plugin_type = "accelerator-availability-filter"
    drops = DropCause.AVAILABILITY
    reads = (ACCELERATOR,)

    def setup(self) -> None:
        self._passes_unknown = self.parameters.on_unknown == "Pass"
        self._suffix = VIRTUAL if self.parameters.use_virtual_capacity else ""
        self._least_vram = read_memory("minFreeVram", self.parameters.min_free_vram) or 0
        self._allowed: Mapping[str, tuple[str, ...]] = {
            name: values
            for name, values in (
                (ISOLATION_MODE, self.parameters.isolation_modes),
                (USED_BY, self.parameters.used_by),
                (PARTITION_TEMPLATE, self.parameters.partition_templates),
                *self.parameters.attributes.items(),
            )
            if values
        }

    def filter(self, request: Request, candidates: Candidates) -> Mask:
        return tag_mask(candidates, self._keeps, *_CAUSES)

    def kept_by_cause(self, request: Request, candidates: Candidates) -> Mapping[DropCause, Mask]:
        return {cause: tag_mask(candidates, self._keeps, cause) for cause in _CAUSES}

    def drop_reasons(self, request: Request, candidates: Candidates) -> Iterable[str]:
        return [reason for tag in candidates.records(ACCELERATOR) if (reason := self.rejection(tag))]

    def _keeps(self, tag: AcceleratorTag, *causes: DropCause) -> bool:
        usable = DropCause.AVAILABILITY not in causes or self._state_rejection(tag) is None
        return usable and (DropCause.CONSTRAINT not in causes or self._bound_rejection(tag) is None)

    def rejection(self, tag: AcceleratorTag) -> str | None:
        return self._state_rejection(tag) or self._bound_rejection(tag)

    def _state_rejection(self, tag: AcceleratorTag) -> str | None:
        phase, pending = tag.attributes.get(PHASE, _RUNNING), False
        if phase != _RUNNING:
            phases = frozenset(str(phase).split(","))
            pending = _PENDING in phases and self.parameters.allow_pending
            if phases - {_RUNNING} and not (pending and phases <= {_RUNNING, _PENDING}):
                return f"phase is {' and '.join(sorted(phases - {_RUNNING}))}"
        not_ready_yet = pending and tag.state is Routability.BLOCKED and tag.attributes.get(USED_BY) in _NO_OTHER_USER
        if tag.state in {Routability.DRAINING, Routability.BLOCKED} and not not_ready_yet:
            return f"is {tag.state.value}" + (f": {tag.reason}" if tag.reason else "")
        if any("NoExecute" in device.taints for device in tag.devices):
            return "a device has a taint of effect NoExecute"
        if self.parameters.on_unhealthy == "Drain" and any(device.health == "Unhealthy" for device in tag.devices):
            return "a device is unhealthy"
        if tag.state is Routability.UNKNOWN and not self._passes_unknown:
            return "its state is not known"
        return None

    def _bound_rejection(self, tag: AcceleratorTag) -> str | None:
        for name, values in self._allowed.items():
            own = tag.attributes.get(name)
            if own is None and not self._passes_unknown:
                return f"{name} is not known"
            if own is not None and str(own) not in values:
                return f"{name} is {own}, not among {', '.join(values)}"
        return self._capacity_rejection(tag) or (
            self._index_rejection(tag.devices) if self.parameters.device_indices else None
        )

    def _capacity_rejection(self, tag: AcceleratorTag) -> str | None:
        for name, most in ((VRAM_USED, self.parameters.max_vram_used), (TFLOPS_USED, self.parameters.max_tflops_used)):
            used = self._amount(tag, name)
            if most < 1 and used is not None and used > most:
                return f"{name} is {used:g}, more than {most:g}"
            if most < 1 and used is None and not self._passes_unknown:
                return f"{name} is not known"
        for name, least in ((VRAM_FREE, self._least_vram), (TFLOPS_FREE, self.parameters.min_free_tflops)):
            free = self._amount(tag, name)
            if free is not None and free < least:
                return f"{name} is {free:.10g}, less than {least:.10g}"
            if least and free is None and not self._passes_unknown:
                return f"{name} is not known"
        return None

    def _amount(self, tag: AcceleratorTag, name: str) -> float | None:
        value = tag.attributes.get(name + self._suffix, tag.attributes.get(name))
        return value if isinstance(value, int | float) else None

    def _index_rejection(self, devices: tuple[Device, ...]) -> str | None:
        known = [device.index for device in devices if device.index is not None]
        outside = [index for index in known if index not in self.parameters.device_indices]
        if outside:
            return f"a device has index {outside[0]}"
        if self._passes_unknown or (known and len(known) == len(devices)):
            return None
        return "indices of its devices are not known"


_MOST_NAME = 253
_DIGEST_BYTES = 16


class ServedClassParameters(Parameters, frozen=True):
    """Owner of a remembered class, and limits of the memory."""

    by: Literal["session", "tenant"] = "session"
    """`session`: one class for each session; `tenant`: one class for each fairness id."""
    session_id_config: SessionIds = SessionIds()
    """Sources of session ids, and limits of the memory; with `by: tenant`, only the limits are used."""


class _Entry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Class of a session or tenant, which is identified by its digest."""

    digest: bytes
    name: str

    def __post_init__(self) -> None:
        if len(self.digest) != _DIGEST_BYTES or not 0 < len(self.name) <= _MOST_NAME:
            raise ValueError("an entry must have a digest of 16 bytes and the name of a class")


class ServedClassProducer(Producer[ServedClassParameters], PreRequest[ServedClassParameters], Shareable):
    """Publishes the accelerator class that last served the request's session or tenant.

    The class is the primary AcceleratorClass of the endpoint that the gateway gets, or else the model of its
    accelerator. Requests without a session id, or without a fairness id, have none. A session takes about 250 bytes of
    memory. With `--shared-state`, pickers share their classes.

    The class is used by `classStickinessSeconds` of `work-seconds-scorer` and `accelerator-selection-producer`.
    """

    plugin_type = "served-class-producer"
    writes = (SERVED_CLASS,)
    may_read: tuple[Datum, ...] = (ACCELERATOR,)
    is_lasting = True

    def setup(self) -> None:
        ids = self.parameters.session_id_config
        if self.parameters.by == "session":
            self.may_read = (ACCELERATOR, *ids.keys)
        self._classes: Bindings[str] = Bindings(
            ttl_seconds=ids.eviction_ttl_seconds, sweep_seconds=ids.eviction_sweep_seconds, limit=ids.max_sessions
        )
        self._outbox = Outbox(_Entry)

    def produce(self, request: Request, candidates: Candidates) -> None:
        session = self._session(request)
        name = self._classes.find(session, self.clock.now(), use=not request.dry_run) if session else None
        if name:
            request.put(SERVED_CLASS, name)

    def pre_request(self, request: Request, result: SchedulingResult) -> None:
        primary, session = result.primary, self._session(request)
        name = class_of(primary.candidates.snapshot.records(ACCELERATOR).values[primary.slot])
        if not session or not name or request.get(SERVED_CLASS) == name:
            return
        digest = session_digest(session)
        self._classes.bind_digest(digest, name, self.clock.now())
        self._outbox.add(_Entry(digest, name[:_MOST_NAME]))

    def dump_state(self, snapshot: Snapshot) -> object | None:
        return {"remembered": len(self._classes)}

    def _session(self, request: Request) -> str:
        if self.parameters.by == "tenant":
            return "" if request.fairness_id == DEFAULT_FLOW else request.fairness_id
        return self.parameters.session_id_config.session(request)

    @property
    def share_name(self) -> str:
        return f"classes/{self.name}"

    def join(self, salt: int) -> None:
        self._outbox.is_open = True

    def changes(self, snapshot: Snapshot) -> bytes | None:
        return self._outbox.take()

    def apply(self, peer: str, payload: bytes, snapshot: Snapshot) -> int:
        now, entries = self.clock.now(), self._outbox.read(payload)
        for each in entries:
            self._classes.bind_digest(each.digest, each.name, now)
        return len(entries)
