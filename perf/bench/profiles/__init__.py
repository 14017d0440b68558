# SPDX-License-Identifier: Apache-2.0
"""Comparison of profiles: waiting time and cost of requests on simulated fleets, in virtual and in real time."""
