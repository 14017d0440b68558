# SPDX-License-Identifier: Apache-2.0
"""The wire: a sans-I/O session that speaks the external-processing protocol, and the servers that carry it."""
