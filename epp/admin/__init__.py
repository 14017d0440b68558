# SPDX-License-Identifier: Apache-2.0
"""The admin port: HTTP with which operators ask for state that is not for everybody, and change it."""

from epp.admin.access import TokenAccess
from epp.admin.allocation import allocation_routes
from epp.admin.cluster_access import ClusterAccess
from epp.admin.config import config_routes
from epp.admin.decisions import decision_routes
from epp.admin.endpoints import PoolView, endpoint_routes
from epp.admin.loop_calls import LoopCalls
from epp.admin.page import page_routes
from epp.admin.placement import placement_routes
from epp.admin.plugin_states import PluginStates
from epp.admin.port import LIMITS as ADMIN_LIMITS
from epp.admin.port import AdminPort, AdminSettings
from epp.admin.quotas import quota_routes
from epp.admin.routes import Route
from epp.admin.simulate import SimulatedPicker, simulation_routes

__all__ = [
    "ADMIN_LIMITS",
    "AdminPort",
    "AdminSettings",
    "ClusterAccess",
    "LoopCalls",
    "PluginStates",
    "PoolView",
    "Route",
    "SimulatedPicker",
    "TokenAccess",
    "allocation_routes",
    "config_routes",
    "decision_routes",
    "endpoint_routes",
    "page_routes",
    "placement_routes",
    "quota_routes",
    "simulation_routes",
]
