# SPDX-License-Identifier: Apache-2.0
"""The commands."""

import os

# Both are read when grpc is first imported. Its fork handlers would delay the start of child processes.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")
# Errors of gRPC, such as a taken port, are reported by our own messages.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
