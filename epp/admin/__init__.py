# SPDX-License-Identifier: Apache-2.0
"""The admin port: HTTP with which operators read the state of the picker, and change quotas."""

from epp.admin.access import ClusterAccess, TokenAccess
from epp.admin.allocation import allocation_routes
from epp.admin.answers import LoopCalls, PickerView
from epp.admin.configuration import config_routes, plugin_state_route
from epp.admin.endpoints import endpoint_routes
from epp.admin.page import page_routes
from epp.admin.placement import placement_routes
from epp.admin.port import LIMITS as ADMIN_LIMITS
from epp.admin.port import AdminPort, AdminSettings
from epp.admin.quotas import quota_routes
from epp.admin.simulate import decision_routes, simulation_routes

__all__ = [
    "ADMIN_LIMITS",
    "AdminPort",
    "AdminSettings",
    "ClusterAccess",
    "LoopCalls",
    "PickerView",
    "TokenAccess",
    "allocation_routes",
    "config_routes",
    "decision_routes",
    "endpoint_routes",
    "page_routes",
    "placement_routes",
    "plugin_state_route",
    "quota_routes",
    "simulation_routes",
]
