# SPDX-License-Identifier: Apache-2.0
"""Objects of any kind in the cluster, as a data source of a configuration."""

import re

from epp.framework.cluster import ObjectKind, ObjectNotifications
from epp.framework.limits import Name
from epp.framework.plugin import Parameters

_VERSION = re.compile(r"[a-z0-9]{1,63}")
_KIND = re.compile(r"[A-Z][A-Za-z0-9]{0,62}")
_GROUP = re.compile(r"[a-z0-9.-]{0,253}")


class KubernetesNotificationParameters(Parameters, frozen=True):
    """Group, version and kind, as `apiVersion: group/version` and `kind` of an object name them."""

    version: Name
    """Version of the group, such as v1."""
    kind: Name
    """Kind of the objects, such as Node."""
    group: str = ""
    """API group, such as apps; empty for the core group of pods and nodes."""

    def __post_init__(self) -> None:
        """Check that they may be names; raises ValueError."""
        for name, pattern, example in (("version", _VERSION, "v1"), ("kind", _KIND, "Node"), ("group", _GROUP, "apps")):
            value = getattr(self, name)
            if not pattern.fullmatch(value):
                raise ValueError(f"{name} is {value!r:.80}: write a name such as {example}")


class KubernetesNotificationSource(ObjectNotifications[KubernetesNotificationParameters]):
    """The source of the objects of one kind, for extractors that read objects.

    For kinds that have namespaces, objects are those in the namespace of the pool (InstaSlice's: in all, where that is
    allowed). The kind is optional: its objects are read from the moment when it is installed and may be listed and
    watched. Where the endpoints are not the pods of a cluster, the source has no effect.
    """

    plugin_type = "k8s-notification-source"

    @property
    def kind(self) -> ObjectKind:
        return ObjectKind(self.parameters.group, self.parameters.kind, self.parameters.version)
