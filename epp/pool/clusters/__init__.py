# SPDX-License-Identifier: Apache-2.0
"""Clusters: status from a hub, and from the picker's own evaluation."""
