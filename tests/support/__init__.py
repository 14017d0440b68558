# SPDX-License-Identifier: Apache-2.0
"""Helpers of tests: pickers with servers and gateways, HTTP/2 peers, Kubernetes clusters."""
