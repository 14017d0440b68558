# SPDX-License-Identifier: Apache-2.0
"""Data sources that a configuration names."""

import re

from epp.framework import Parameters
from epp.framework.cluster import ObjectKind, ObjectNotifications
from epp.framework.datalayer import EndpointNotifications
from epp.framework.limits import Name


class EndpointNotificationSource(EndpointNotifications):
    """Gives taggers each endpoint that joins the pool or changes."""

    plugin_type = "endpoint-notification-source"


_VERSION = re.compile(r"[a-z0-9]{1,63}")
_KIND = re.compile(r"[A-Z][A-Za-z0-9]{0,62}")
_GROUP = re.compile(r"[a-z0-9.-]{0,253}")


class KubernetesNotificationParameters(Parameters, frozen=True):
    """Group, version and kind of the objects, as in their `apiVersion` and `kind`."""

    version: Name
    """Version of the group, such as v1."""
    kind: Name
    """Kind of the objects, such as Node."""
    group: str = ""
    """API group, such as apps; empty for the core group of pods and nodes."""

    def __post_init__(self) -> None:
        for name, pattern, example in (("version", _VERSION, "v1"), ("kind", _KIND, "Node"), ("group", _GROUP, "apps")):
            value = getattr(self, name)
            if not pattern.fullmatch(value):
                raise ValueError(f"{name} is {value!r:.80}: write a name such as {example}")


class KubernetesNotificationSource(ObjectNotifications[KubernetesNotificationParameters]):
    """Watches the objects of one kind, for extractors that read objects.

    Objects of a kind with namespaces are read in the namespace of the pool; those of InstaSlice in all namespaces, if
    the picker has the right. A kind that is missing is watched once it is installed and the picker may list and watch
    it. Without a Kubernetes cluster, the source has no effect.
    """

    plugin_type = "k8s-notification-source"

    @property
    def kind(self) -> ObjectKind:
        return ObjectKind(self.parameters.group, self.parameters.kind, self.parameters.version)
