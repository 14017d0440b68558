# SPDX-License-Identifier: Apache-2.0
"""Objects of the Kubernetes cluster that the pool is in, and of hubs, for plugins that read them."""

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
    """A kubeconfig, or a directory of a mounted Secret that has one."""
    context: str = ""
    """Context in it; empty for the current one."""
    secret: str = ""
    """Secret of the pool's API server with the kubeconfig, in place of a file: `namespace/name`, or `name` for the
    namespace of the pool."""
    key: str = ""
    """Key in the Secret; empty for `kubeconfig` or `value`."""

    def __str__(self) -> str:
        return f"Secret {self.secret}" if self.secret else self.kubeconfig


class ObjectKind(NamedTuple):
    """A kind of object, as an object itself names it."""

    group: str
    """Empty for the core group of pods and nodes."""
    kind: str
    version: str = ""
    """Version of the group; empty for the one that this picker knows, or else the one that the cluster prefers."""
    everywhere: bool = False
    """Whether the plugin needs the objects of all namespaces."""
    hub: HubAccess | None = None
    """API server that has the objects; None for that of the pool."""
    names: str = ""
    """Regular expression of the names of objects; others are skipped before they are decoded. Empty for all."""

    @property
    def place(self) -> str:
        """What the objects come from, in place of the name of a file."""
        return "cluster" if self.hub is None else "hub"

    def __str__(self) -> str:
        return f"{self.kind}.{self.group}" if self.group else self.kind


@dataclass(frozen=True, slots=True)
class ObjectsOfKind:
    """All objects of a kind that are in effect, and which of them changed."""

    kind: ObjectKind
    objects: Mapping[str, Any]
    """What `decode` returned for each, by `namespace/name`, or by name for kinds without namespaces; a copy."""
    changed: frozenset[str] = frozenset()
    """Those that are new, changed or gone since the plugin was last called."""
    problems: tuple[InputProblem, ...] = ()
    """Objects whose newest version is invalid, at most 100; the version before is among `objects`, if there is one."""


class ObjectReader(Plugin[P], role=Role(title="Object readers")):
    """Reads objects of the cluster that the pool is in, or of a hub; without both, `objects_changed` is never called.

    The kinds are those of `kinds`, and those of each `k8s-notification-source` that has the plugin as an extractor. All
    of them are optional: a kind that is not installed, or that the picker may not read, has no objects until it is, or
    may.
    """

    is_for_any_pool: ClassVar[bool] = False
    """Whether it reads files of objects wherever endpoints come from, since its objects bear on no endpoint."""

    unread: Callable[[Collection[str]], str] = staticmethod(lambda _kinds: "")
    """Returns why objects of these kinds, given by their names, may be out of date; empty if they are not."""

    @property
    def kinds(self) -> Sequence[ObjectKind]:
        """Kinds that are read without a k8s-notification-source; after each call, those that are new are read too."""
        return ()

    def can_read(self, kind: ObjectKind) -> bool:
        """Return whether objects of a kind are of any use here."""
        return True

    def read_files(self, paths: Sequence[str]) -> None:
        """Read objects of these files too: the files of `--objects`, or of the pool.

        Called once before the plugin is used, for one that can read files. Raises ConfigurationError.
        """

    @staticmethod
    def decode(document: Mapping[str, Any]) -> object | None:
        """Return the part of an object to keep, by default all of it; None for a useless object.

        Raises ValueError with field, value and remedy for an invalid object: its version before stays in effect. Runs
        in any thread, for thousands of objects. Keep only the needed parts: whole objects can be large.
        """
        return document

    @abstractmethod
    async def objects_changed(self, kinds: Sequence[ObjectsOfKind]) -> AffectedEndpoints:
        """Take the kinds that changed, all of them the first time; return which endpoints are to be tagged again.

        Changes that arrive together, or during a call, are one call. A call that raises is repeated after a while.
        """


class ObjectNotifications(Plugin[P], role=Role(title="Object notifications")):
    """Stands, among the data sources, for the objects of a kind; its extractors are object readers."""

    @property
    @abstractmethod
    def kind(self) -> ObjectKind:
        """The kind."""


@dataclass(frozen=True, slots=True)
class Reading:
    """A plugin and the kinds of objects that it reads."""

    reader: ObjectReader[Any]
    kinds: tuple[ObjectKind, ...]
