# SPDX-License-Identifier: Apache-2.0
"""The demonstration: simulated servers of different speed, the gateway in front, and a table to watch."""
