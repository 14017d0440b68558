# SPDX-License-Identifier: Apache-2.0
"""The multi-cycle scheduler, which runs profiles over one snapshot until the profile picker chooses no more."""
