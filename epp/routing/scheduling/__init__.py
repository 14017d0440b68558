# SPDX-License-Identifier: Apache-2.0
"""The multi-cycle scheduler: runs profiles over one snapshot until the profile picker asks for no more."""
