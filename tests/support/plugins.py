# SPDX-License-Identifier: Apache-2.0
"""Plugins, built as from a configuration."""

from epp.framework import ManualClock
from epp.framework.registry import Registry


def built(cls, parameters=None, *, name="mine", clock=None):
    registry = Registry({})
    registry.register(cls)
    return registry.build(cls.plugin_type, parameters or {}, name=name, clock=clock or ManualClock())
