# SPDX-License-Identifier: Apache-2.0
"""Parsers: read from request bodies the few fields that routing needs."""
