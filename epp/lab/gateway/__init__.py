# SPDX-License-Identifier: Apache-2.0
"""A local Envoy with a picker: configuration and process."""
