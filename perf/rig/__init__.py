# SPDX-License-Identifier: Apache-2.0
"""Processes of a measurement: pickers, Envoys, model servers and load."""
