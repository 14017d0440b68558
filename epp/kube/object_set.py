# SPDX-License-Identifier: Apache-2.0
"""Objects of one resource, from lists and events as bytes; no I/O."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

import msgspec
import structlog

from epp.framework.messages import described
from epp.framework.plugin_status import InputProblem
from epp.kube.access import ApiError, error_of
from epp.kube.resources import Resource

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

EXPIRED = 410
_VERSIONS = frozenset({"ADDED", "MODIFIED"})
_MOST_PROBLEMS = 100
_REASON_LENGTH = 500


class Decode(Protocol[T_co]):
    """Decodes one version of an object."""

    def __call__(self, document: Mapping[str, object], /) -> T_co | None:
        """Return the object, None for an irrelevant one; raises ValueError with field, value and remedy."""


@dataclass(frozen=True, slots=True)
class Delta(Generic[T]):
    """New and changed objects, and the ids of removed ones."""

    changed: Mapping[str, T] = field(default_factory=dict)
    removed: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        """Whether anything changed."""
        return bool(self.changed or self.removed)


@dataclass(frozen=True, slots=True)
class Item(Generic[T]):
    """One version of an object."""

    id: str
    """`namespace/name`, or the name for kinds of cluster scope."""
    object: T | None = None
    """None for an invalid or irrelevant version."""
    problem: str = ""


class _Metadata(msgspec.Struct, frozen=True):
    name: str = ""
    namespace: str | None = None
    version: str = msgspec.field(default="", name="resourceVersion")
    more: str = msgspec.field(default="", name="continue")


class _Head(msgspec.Struct, frozen=True):
    metadata: _Metadata = _Metadata()


class _List(_Head, frozen=True):
    items: list[msgspec.Raw] | None = None


class _Event(msgspec.Struct, frozen=True):
    type: str
    object: msgspec.Raw


_decode_head = msgspec.json.Decoder(_Head).decode
_decode_list = msgspec.json.Decoder(_List).decode
_decode_event = msgspec.json.Decoder(_Event).decode
_decode_document = msgspec.json.Decoder(dict[str, object]).decode

_log = structlog.get_logger()
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError)


class ObjectSet(Generic[T]):
    """Objects in their last valid version: a version that cannot be decoded has no effect."""

    def __init__(self, resource: Resource, decode: Decode[T], place: str = "cluster") -> None:
        """`place` is what the objects come from, for messages."""
        self.objects: dict[str, T] = {}
        self.version = ""
        """resourceVersion at which a watch continues; empty before the first list."""
        self.rejected = 0
        """Versions of objects that could not be decoded."""
        self._resource = resource
        self._place = place
        self._decode = decode
        self._problems: dict[str, str] = {}
        self._problems_changed = False
        self._listeners: list[Callable[[Delta[T]], None]] = []

    @property
    def problems(self) -> tuple[InputProblem, ...]:
        """Objects whose newest version is not in effect; at most 100."""
        return tuple(
            InputProblem(self._place, f"{self._resource.kind} {name}", reason, int(name in self.objects))
            for name, reason in list(self._problems.items())[:_MOST_PROBLEMS]
        )

    def subscribe(self, listener: Callable[[Delta[T]], None]) -> Callable[[], None]:
        """Call `listener` after each list and each change of objects or problems; return a function to unsubscribe."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def read_page(self, content: bytes, api_version: str) -> tuple[list[Item[T]], str, str]:
        """Return items, resourceVersion and continuation of a page of a list; raises ApiError. Thread-safe."""
        try:
            page = _decode_list(content)
        except _UNREADABLE as error:
            raise ApiError(0, "Malformed", f"the list of {self._resource.title} is unreadable: {error}") from error
        kind = {"apiVersion": api_version, "kind": self._resource.kind}
        items = [self._read(raw, _decode_head(raw).metadata, kind) for raw in page.items or ()]
        return items, page.metadata.version, page.metadata.more

    def replace(self, items: Iterable[Item[T]], version: str) -> None:
        """Replace all objects."""
        changed: dict[str, T] = {}
        present: set[str] = set()
        before_problems, self._problems = self._problems, {}
        for item in items:
            if item.problem:
                self._reject(item, before_problems)
            elif item.object is not None:
                changed[item.id] = item.object
            if item.problem or item.object is not None:
                present.add(item.id)
        self._problems_changed = self._problems != before_problems
        self.version = version
        self._publish(changed, [name for name in self.objects if name not in present], always=True)

    def clear(self) -> None:
        """Remove all objects."""
        self._problems_changed = bool(self._problems)
        self._problems, self.version = {}, ""
        self._publish({}, list(self.objects), always=True)

    def apply(self, lines: Iterable[bytes]) -> None:
        """Apply events as one change; raises ApiError for an error event, after the events before it are applied.

        An unreadable event is treated like an expired version, so that a new list follows. `version` is empty after an
        error.
        """
        changed: dict[str, T] = {}
        removed: dict[str, None] = {}
        try:
            for line in lines:
                self._apply_one(line, changed, removed)
        finally:
            self._publish(changed, [name for name in removed if name in self.objects])

    def _apply_one(self, line: bytes, changed: dict[str, T], removed: dict[str, None]) -> None:
        try:
            event = _decode_event(line)
            if event.type == "ERROR":
                self.version = ""
                raise error_of(0, bytes(event.object))
            metadata = _decode_head(event.object).metadata
            item: Item[T] = Item(_id(metadata))
            if event.type in _VERSIONS:
                item = self._read(event.object, metadata, {})
        except _UNREADABLE as error:
            self.version = ""
            raise ApiError(EXPIRED, "Malformed", f"an event of the watch is unreadable: {error}") from error
        self.version = metadata.version or self.version
        if event.type == "BOOKMARK":
            return
        if item.problem:
            self._reject(item, self._problems)
            return
        self._problems_changed |= self._problems.pop(item.id, None) is not None
        if item.object is None:
            changed.pop(item.id, None)
            removed[item.id] = None
        else:
            removed.pop(item.id, None)
            changed[item.id] = item.object

    def _read(self, raw: msgspec.Raw, metadata: _Metadata, kind: Mapping[str, object]) -> Item[T]:
        name = _id(metadata)
        if self._resource.names and re.fullmatch(self._resource.names, metadata.name) is None:
            return Item(name)
        document = {**_decode_document(raw), **kind}
        try:
            return Item(name, self._decode(document))
        except ValueError as error:
            problem = str(error) or type(error).__name__
        except Exception as error:  # noqa: BLE001  a bug in a decoder must not end the watch
            problem = described(error, type(self))
        return Item(name, problem=problem[:_REASON_LENGTH])

    def _reject(self, item: Item[T], before: Mapping[str, str]) -> None:
        if before.get(item.id) != item.problem:
            self.rejected += 1
            reason = f"{self._resource.kind} {item.id}"
            _log.warning("object not in effect", object=reason, reason=item.problem, kept=item.id in self.objects)
            self._problems_changed = True
        self._problems[item.id] = item.problem

    def _publish(self, found: Mapping[str, T], removed: Iterable[str], *, always: bool = False) -> None:
        changed = {name: one for name, one in found.items() if self.objects.get(name) != one}
        delta = Delta(changed, tuple(removed))
        if not delta and not self._problems_changed and not always:
            return
        self._problems_changed = False
        self.objects.update(changed)
        for name in delta.removed:
            del self.objects[name]
        for listener in tuple(self._listeners):
            listener(delta)


def _id(metadata: _Metadata) -> str:
    return f"{metadata.namespace}/{metadata.name}" if metadata.namespace else metadata.name
