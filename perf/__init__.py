# SPDX-License-Identifier: Apache-2.0
"""What measures and attacks the program: benches, campaigns, overload, fuzzing."""
