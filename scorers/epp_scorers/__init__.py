# SPDX-License-Identifier: Apache-2.0
"""The scorers that ship with the picker; each depends on `epp.framework` alone."""
