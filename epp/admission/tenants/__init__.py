# SPDX-License-Identifier: Apache-2.0
"""Identification of the tenant that sends a request, by API key, namespace or fairness id."""
