# SPDX-License-Identifier: Apache-2.0
"""JSON and SSE bodies as bytes: a few values are read and changed in place, however the body is cut."""
