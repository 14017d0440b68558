# SPDX-License-Identifier: Apache-2.0
import pytest

from epp.framework import ConfigurationError
from epp.framework.cluster_objects import ObjectKind
from epp.framework.datalayer import EndpointNotifications
from epp.plugins.request_control import EndpointNotificationSource, KubernetesNotificationSource
from tests.support.plugins import built


def test_notification_source_takes_no_parameters():
    source = built(EndpointNotificationSource, {})
    assert isinstance(source, EndpointNotifications)


def test_notification_source_of_objects_names_their_kind():
    def kind(**parameters: str) -> ObjectKind:
        source = built(KubernetesNotificationSource, parameters)
        assert isinstance(source, KubernetesNotificationSource)
        return source.kind

    assert kind(version="v1", kind="Node") == ObjectKind("", "Node", "v1")
    assert kind(group="ome.io", version="v1beta1", kind="AcceleratorClass") == ObjectKind(
        "ome.io", "AcceleratorClass", "v1beta1"
    )
    with pytest.raises(ConfigurationError, match="kind"):
        kind(version="v1")
    with pytest.raises(ConfigurationError, match=r"version is .*: write a name such as v1"):
        kind(version="../v1", kind="Node")
