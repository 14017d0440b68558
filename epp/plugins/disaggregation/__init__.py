# SPDX-License-Identifier: Apache-2.0
"""Disaggregation: a request in legs, each on an endpoint of its own: encode, prefill and decode."""
