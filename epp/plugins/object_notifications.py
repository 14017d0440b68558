# SPDX-License-Identifier: Apache-2.0
"""Objects of any kind in the cluster, as a data source of a configuration."""

from typing import Annotated

from msgspec import Meta

from epp.framework.cluster import ObjectKind, ObjectNotifications
from epp.framework.plugin import Parameters


class KubernetesNotificationParameters(Parameters, frozen=True):
    """Group, version and kind, as `apiVersion: group/version` and `kind` of an object name them."""

    version: Annotated[str, Meta(pattern=r"^[a-z0-9]+$", max_length=63)]
    """Version of the group."""
    kind: Annotated[str, Meta(pattern=r"^[A-Z][A-Za-z0-9]*$", max_length=63)]
    """Kind of the objects, such as Node."""
    group: Annotated[str, Meta(pattern=r"^[a-z0-9.-]*$", max_length=253)] = ""
    """API group; empty for the core group of pods and nodes."""


class KubernetesNotificationSource(ObjectNotifications[KubernetesNotificationParameters]):
    """The source of the objects of one kind, for extractors that read objects.

    Objects are those of the namespace of the pool, for kinds that have namespaces. The kind is optional: its objects
    are read from the moment when it is installed and may be listed and watched. Without a cluster it has no effect.
    """

    plugin_type = "k8s-notification-source"

    @property
    def kind(self) -> ObjectKind:
        return ObjectKind(self.parameters.group, self.parameters.kind, self.parameters.version)
