# SPDX-License-Identifier: Apache-2.0
"""Metrics, the operator page and logs of a picker."""
