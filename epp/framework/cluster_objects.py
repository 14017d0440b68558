# SPDX-License-Identifier: Apache-2.0
"""Objects of the Kubernetes cluster of the pool, and of hubs, for plugins that read them."""

from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from epp.framework.datalayer import AffectedEndpoints
from epp.framework.plugin import P, Plugin, Role
from epp.framework.plugin_status import InputProblem


class HubAccess(NamedTuple):
    """Access to an API server other than that of the pool."""

    kubeconfig: str = ""
    """Path of a kubeconfig, or of a directory of a mounted Secret with a kubeconfig."""
    context: str = ""
    """Context of the kubeconfig; empty for the current one."""
    secret: str = ""
    """Secret in the cluster of the pool with the kubeconfig, instead of a file: `namespace/name`, or `name` for the
    namespace of the pool."""
    key: str = ""
    """Key in the Secret; empty for `kubeconfig` or `value`."""

    def __str__(self) -> str:
        return f"Secret {self.secret}" if self.secret else self.kubeconfig


class ObjectKind(NamedTuple):
    """A kind of object."""

    group: str
    """API group; empty for the core group, which has pods and nodes."""
    kind: str
    version: str = ""
    """Version of the group; empty for the one that this picker supports, or else the one that the cluster prefers."""
    everywhere: bool = False
    """Whether the plugin needs the objects of all namespaces."""
    hub: HubAccess | None = None
    """API server that has the objects; None for that of the pool."""
    names: str = ""
    """Regular expression for the names of objects; others are skipped before they are decoded. Empty for all."""

    @property
    def place(self) -> str:
        """Source of the objects, for messages that otherwise name a file."""
        return "cluster" if self.hub is None else "hub"

    def __str__(self) -> str:
        return f"{self.kind}.{self.group}" if self.group else self.kind


@dataclass(frozen=True, slots=True)
class ObjectsOfKind:
    """All objects of a kind that are in effect, and the names of the changed ones."""

    kind: ObjectKind
    objects: Mapping[str, Any]
    """Results of `decode` by `namespace/name`, or by name for kinds without namespaces; a copy."""
    changed: frozenset[str] = frozenset()
    """Names of objects that were added, changed or removed since the last call of the plugin."""
    problems: tuple[InputProblem, ...] = ()
    """Objects whose newest version is invalid, at most 100; a valid previous version stays in `objects`."""


class ObjectReader(Plugin[P], role=Role(title="Object readers")):
    """Reads objects of the pool's cluster or of a hub; without both, `objects_changed` is never called.

    The kinds are `kinds`, and those of each `k8s-notification-source` that has the plugin as an extractor. All kinds
    are optional: a kind that is not installed, or that the picker is not allowed to read, has no objects until it is.
    """

    is_for_any_pool: ClassVar[bool] = False
    """Whether the plugin reads object files for any source of endpoints, because its objects affect no endpoint."""

    unread: Callable[[Collection[str]], str] = staticmethod(lambda _kinds: "")
    """Function that returns the reason that objects of these kinds may be out of date; empty if they are not."""

    @property
    def kinds(self) -> Sequence[ObjectKind]:
        """Kinds that are read without a k8s-notification-source; new kinds are read after each `objects_changed`."""
        return ()

    def can_read(self, kind: ObjectKind) -> bool:
        """Return whether the plugin uses objects of this kind."""
        return True

    def read_files(self, paths: Sequence[str]) -> None:
        """Also read objects of these files: those of `--objects`, or those of the pool.

        Called once before the plugin is used, if it can read files. Raises ConfigurationError.
        """

    @staticmethod
    def decode(document: Mapping[str, Any]) -> object | None:
        """Return the part of an object to keep, by default the whole object; None to skip the object.

        Raises ValueError with field, value and remedy for an invalid object, whose previous version stays in effect.
        Called in any thread, for thousands of objects. Keep only the needed parts, because objects can be large.
        """
        return document

    @abstractmethod
    async def objects_changed(self, kinds: Sequence[ObjectsOfKind]) -> AffectedEndpoints:
        """Apply the changed kinds, in the first call all kinds; return the endpoints that must be tagged again.

        Changes that arrive together, or during a call, are combined. A call that raises is repeated after a while.
        """


class ObjectNotifications(Plugin[P], role=Role(title="Object notifications")):
    """Represents the objects of a kind as a data source, whose extractors are object readers."""

    @property
    @abstractmethod
    def kind(self) -> ObjectKind:
        """Kind of the objects."""


@dataclass(frozen=True, slots=True)
class Reading:
    """A plugin with the kinds of objects that it reads."""

    reader: ObjectReader[Any]
    kinds: tuple[ObjectKind, ...]
