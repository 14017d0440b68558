# SPDX-License-Identifier: Apache-2.0
"""JSON, SSE and gRPC bodies as bytes: a few values are read and replaced, wherever pieces of the body begin."""
