# SPDX-License-Identifier: Apache-2.0
"""MIG: names of profiles, layouts of GPUs, the share that a slice has of its GPU, and slices made by InstaSlice."""

from epp.hardware.mig.partition import UNKNOWN_SLICE, equal_share, is_unknown_slice, joined, mig_gpu, partition_of
from epp.hardware.mig.profile import MigProfile, parse_mig_profile

__all__ = [
    "UNKNOWN_SLICE",
    "MigProfile",
    "equal_share",
    "is_unknown_slice",
    "joined",
    "mig_gpu",
    "parse_mig_profile",
    "partition_of",
]
