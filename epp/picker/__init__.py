# SPDX-License-Identifier: Apache-2.0
"""A picker: servers in front of one pool under a configuration that can change while it runs."""

from epp.picker.kubernetes import KubernetesSettings
from epp.picker.picker import Picker
from epp.picker.settings import PickerSettings

__all__ = ["KubernetesSettings", "Picker", "PickerSettings"]
