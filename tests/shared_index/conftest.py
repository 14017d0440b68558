# SPDX-License-Identifier: Apache-2.0
"""A genuine server."""

from tests.support.redis_server import server

__all__ = ["server"]
