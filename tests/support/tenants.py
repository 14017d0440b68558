# SPDX-License-Identifier: Apache-2.0
"""The plugin that identifies tenants, and digests of API keys."""

import hashlib

from epp.admission.tenants import Tenants
from epp.framework import ManualClock
from epp.framework.registry import Registry


def sha256(key: str) -> str:
    """Return an API key as a configuration has it."""
    return f"sha256:{hashlib.sha256(key.encode()).hexdigest()}"


def build_tenants(**parameters: object) -> Tenants:
    registry = Registry({})
    registry.register(Tenants)
    return registry.build("tenants", parameters, name="tenants", clock=ManualClock())
