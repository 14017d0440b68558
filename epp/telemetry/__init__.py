# SPDX-License-Identifier: Apache-2.0
"""Metrics, the metrics port and logs of a picker."""
