# SPDX-License-Identifier: Apache-2.0
"""A local Envoy with a picker behind it: its configuration, and the process."""
