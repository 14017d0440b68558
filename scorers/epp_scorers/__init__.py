# SPDX-License-Identifier: Apache-2.0
"""The scorers that ship with the picker: one file each, built on `epp.framework` alone."""
