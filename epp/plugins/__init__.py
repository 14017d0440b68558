# SPDX-License-Identifier: Apache-2.0
"""The plugins that ship with the picker and are not scorers; each depends on `epp.framework` alone."""
