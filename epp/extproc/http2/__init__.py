# SPDX-License-Identifier: Apache-2.0
"""A gRPC server over HTTP/2: a sans-I/O connection, the asyncio protocol that carries it, and the server."""
