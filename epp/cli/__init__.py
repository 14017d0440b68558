"""The commands."""

import os

# Read when grpc is first imported: its fork handlers only get in the way of starting a child process.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")
# The same: a taken port is told once, by us.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
