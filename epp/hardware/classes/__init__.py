# SPDX-License-Identifier: Apache-2.0
"""AcceleratorClasses: matching against an endpoint, and validation."""
