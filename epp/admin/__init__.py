# SPDX-License-Identifier: Apache-2.0
"""The admin port: HTTP with which operators ask for state that is not for everybody, and change it."""

from epp.admin.access import TokenAccess
from epp.admin.decisions import decision_routes
from epp.admin.loop_calls import LoopCalls
from epp.admin.page import page_routes
from epp.admin.port import LIMITS as ADMIN_LIMITS
from epp.admin.port import AdminPort, AdminSettings
from epp.admin.quotas import quota_routes
from epp.admin.routes import Route

__all__ = [
    "ADMIN_LIMITS",
    "AdminPort",
    "AdminSettings",
    "LoopCalls",
    "Route",
    "TokenAccess",
    "decision_routes",
    "page_routes",
    "quota_routes",
]
