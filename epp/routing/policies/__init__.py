# SPDX-License-Identifier: Apache-2.0
"""Policies of a pool from InferenceObjective and InferenceModelRewrite objects."""

from epp.routing.policies.build import BuiltPolicies, PoolIdentity, build_policies
from epp.routing.policies.sources import PolicyFiles

__all__ = ["BuiltPolicies", "PolicyFiles", "PoolIdentity", "build_policies"]
