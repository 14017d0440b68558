# SPDX-License-Identifier: Apache-2.0
"""Profiles compared: how long requests wait and what they cost, on simulated fleets, in virtual and in real time."""
