# SPDX-License-Identifier: Apache-2.0
"""Worker processes of one picker: the main process finds and polls endpoints, the workers answer requests."""
