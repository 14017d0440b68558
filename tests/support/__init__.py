# SPDX-License-Identifier: Apache-2.0
"""Worlds, wires, clusters and fleets that several tests use."""
