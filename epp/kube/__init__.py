# SPDX-License-Identifier: Apache-2.0
"""A Kubernetes API server: access, and objects that are kept up to date."""
