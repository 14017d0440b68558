# SPDX-License-Identifier: Apache-2.0
"""A picker: servers in front of one pool under a configuration that can change while it runs."""

from epp.picker.kubernetes import KubernetesSettings
from epp.picker.picker import Picker
from epp.picker.settings import DEFAULT_POOL_NAME, PickerSettings

__all__ = ["DEFAULT_POOL_NAME", "KubernetesSettings", "Picker", "PickerSettings"]
