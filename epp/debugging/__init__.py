# SPDX-License-Identifier: Apache-2.0
"""Pages for those who look into a running picker: profiles as of Go's pprof, and the state of plugins."""

from epp.debugging.pages import DebugPages

__all__ = ["DebugPages"]
