# SPDX-License-Identifier: Apache-2.0
"""Collections of objects of an API server: version, namespace and lists, and objects by events, as bytes."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeAlias, TypeVar

import msgspec
import structlog

from epp.framework.messages import described
from epp.framework.plugin_status import InputProblem
from epp.kube.access import ABSENT, EXPIRED, ApiError, KubeApi, error_of
from epp.kube.objects.base import Object, Part, decoded
from epp.kube.resources import Resource

T = TypeVar("T")

_VERSIONS = frozenset({"ADDED", "MODIFIED"})
_MOST_PROBLEMS = 100
_REASON_LENGTH = 500


Decode: TypeAlias = Callable[[Mapping[str, object]], T | None]
"""Returns the object in a document, None for an irrelevant one; raises ValueError with field, value and remedy."""


@dataclass(frozen=True, slots=True)
class Delta(Generic[T]):
    changed: Mapping[str, T] = field(default_factory=dict)
    removed: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.changed or self.removed)


@dataclass(frozen=True, slots=True)
class Item(Generic[T]):
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
    """Objects in their last good version: one that cannot be decoded, or is invalid, does not replace a sound one."""

    def __init__(self, resource: Resource, decode: Decode[T], place: str = "cluster") -> None:
        """`place` is the source of the objects, for messages."""
        self.objects: dict[str, T] = {}
        self.version = ""
        """resourceVersion at which a watch continues; empty before the first list."""
        self.rejected = 0
        """Number of rejected versions; repeated rejections of an object for the same reason count once."""
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
        changed: dict[str, T] = {}
        present: set[str] = set()
        before_problems, self._problems = self._problems, {}
        for item in items:
            if problem := _problem(item, self.objects.get(item.id)):
                self._reject(item.id, problem, before_problems)
            elif item.object is not None:
                changed[item.id] = item.object
            if problem or item.object is not None:
                present.add(item.id)
        self._problems_changed = self._problems != before_problems
        self.version = version
        self._publish(changed, [name for name in self.objects if name not in present], always=True)

    def clear(self) -> None:
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
        held = None if item.id in removed else changed.get(item.id, self.objects.get(item.id))
        if problem := _problem(item, held):
            self._reject(item.id, problem, self._problems)
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

    def _reject(self, name: str, problem: str, before: Mapping[str, str]) -> None:
        if before.get(name) != problem:
            self.rejected += 1
            title = f"{self._resource.kind} {name}"
            _log.warning("object not in effect", object=title, reason=problem, kept=name in self.objects)
            self._problems_changed = True
        self._problems[name] = problem

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


def _problem(item: Item[T], held: T | None) -> str:
    """Return why a version does not take effect in place of the one that is held, if any; empty if it does."""
    found = item.object
    if isinstance(found, Object) and isinstance(held, Object) and not found.replaces(held):
        return found.invalid[:_REASON_LENGTH]
    return item.problem


def _id(metadata: _Metadata) -> str:
    return f"{metadata.namespace}/{metadata.name}" if metadata.namespace else metadata.name


R = TypeVar("R")

_NOT_FOUND = 404
_PAGE = 500
_SMALL_PAGE = 50
"""Page size for kinds that are read by name, because the other objects of the kind may be large."""


class _Group(Part, frozen=True):
    version: str = msgspec.field(default="", name="preferredVersion.version")


class _Entry(Part, frozen=True):
    name: str = ""
    kind: str = ""
    namespaced: bool = False


class ApiResources(Part, frozen=True):
    resources: tuple[_Entry, ...] = ()


class ApiCollection:
    """The collection of a resource in use; `next_version` and `narrow` select another one if it cannot be read."""

    def __init__(self, resource: Resource, namespace: str = "", fallback: str = "") -> None:
        """Select the namespace, or all if it is empty; `fallback` is for `narrow`."""
        self.resource = resource
        self._given = resource
        self._wide = namespace
        self._fallback = fallback
        self._namespace = namespace
        self.version = ""
        """Selected version; empty before the first one of an unknown kind is discovered."""
        self._untried: list[str] = []
        self._begin()

    @property
    def namespace(self) -> str:
        """Empty for all namespaces, and for kinds of cluster scope."""
        return self._namespace if self.resource.namespaced else ""

    @property
    def is_narrowed(self) -> bool:
        """Whether the fallback namespace is selected."""
        return self._namespace != self._wide

    @property
    def title(self) -> str:
        """Resource and namespace, for messages."""
        return f"{self.resource.title} in {self.namespace}" if self.namespace else self.resource.title

    @property
    def path(self) -> str:
        return self.resource.path(self.version, self.namespace)

    async def find(self, api: KubeApi) -> None:
        """Discover the plural, and the version if unset; raises ApiError and ApiUnreachableError."""
        if self.resource.plural:
            return
        group = self._given.group
        version = self.version or "v1"
        if group and not self.version:
            response = await api.request("GET", f"/apis/{group}")
            version = _read(response, _Group, group).version
        root = self._given.path(version).removesuffix("/")
        entries = _read(await api.request("GET", root), ApiResources, root).resources
        found = next((each for each in entries if each.kind == self._given.kind and "/" not in each.name), None)
        if found is None:
            raise ApiError(_NOT_FOUND, "NotFound", f"{root} has no {self._given.kind}")
        self.version = version
        self.resource = self._given._replace(versions=(version,), plural=found.name, namespaced=found.namespaced)

    async def list_all(
        self, api: KubeApi, objects: ObjectSet[T], selector: Mapping[str, str]
    ) -> tuple[list[Item[T]], str]:
        """Return all objects, read in pages, and the resourceVersion of the list; `objects` decodes them."""
        params = {"limit": str(_SMALL_PAGE if self.resource.names else _PAGE), **selector}
        api_version = self.resource.api_version(self.version)
        items: list[Item[T]] = []
        while True:
            content = await api.request("GET", self.path, params=params)
            found, version, more = await asyncio.to_thread(objects.read_page, content, api_version)
            items += found
            if not more:
                return items, version
            params["continue"] = more

    def found(self) -> None:
        """Record that the selected version works."""
        self._untried = [version for version in self.resource.versions if version != self.version]

    def next_version(self) -> bool:
        """Select the next version; return False and restart with the first one if all were tried."""
        if self._untried:
            self.version = self._untried.pop(0)
            return True
        self._begin()
        return False

    def narrow(self) -> bool:
        """Select the fallback namespace; return False and select all namespaces if it is unset or was tried."""
        if not self._fallback or not self.resource.namespaced or self.is_narrowed:
            self.widen()
            return False
        self._namespace = self._fallback
        return True

    def widen(self) -> None:
        self._namespace = self._wide

    def _begin(self) -> None:
        self.resource = self._given
        self.version, *self._untried = self._given.versions or ("",)


def _read(response: bytes, cls: type[T], place: str) -> T:
    try:
        return decoded(response, cls)
    except ValueError as error:
        raise ApiError(0, "Malformed", f"the response to {place} is unreadable: {error}") from error


async def list_objects(
    api: KubeApi,
    resource: Resource,
    decode: Decode[T],
    *,
    namespace: str = "",
    selector: Mapping[str, str] | None = None,
) -> tuple[Item[T], ...]:
    """Return all objects in the first version on the server; raises ApiError and ApiUnreachableError."""
    collection, objects = ApiCollection(resource, namespace), ObjectSet(resource, decode)
    items, _ = await in_first_version(collection, lambda: collection.list_all(api, objects, selector or {}))
    return tuple(items)


async def in_first_version(collection: ApiCollection, request: Callable[[], Awaitable[R]]) -> R:
    """Return the response in the first version that the server has; raises the error of the last version."""
    while True:
        try:
            return await request()
        except ApiError as error:
            if error.status not in ABSENT or not collection.next_version():
                raise
