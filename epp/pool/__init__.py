# SPDX-License-Identifier: Apache-2.0
"""The endpoints of the pool and their load: discovery, polling and metrics pages."""
