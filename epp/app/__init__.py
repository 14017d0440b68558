# SPDX-License-Identifier: Apache-2.0
"""A picker: servers in front of one pool under a configuration that can change while it runs."""

from epp.app.kubernetes import KubernetesSettings
from epp.app.picker import Picker
from epp.app.pools import PoolChoice, Pools
from epp.app.settings import DEFAULT_POOL_NAME, PickerSettings

__all__ = ["DEFAULT_POOL_NAME", "KubernetesSettings", "Picker", "PickerSettings", "PoolChoice", "Pools"]
