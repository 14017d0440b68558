# SPDX-License-Identifier: Apache-2.0
"""Disaggregated requests: encode, prefill and decode legs on different endpoints."""
