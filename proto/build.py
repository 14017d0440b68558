# SPDX-License-Identifier: Apache-2.0
"""Build hook: compiles ext_proc.proto into the descriptor set and the type stubs that `epp.extproc.wire` loads."""

from pathlib import Path
from typing import Any

from grpc_tools import protoc
from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CompileProto(BuildHookInterface):
    """Runs for wheels and editable installs alike."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002
        """Write both files beside their user."""
        proto = Path(self.root) / "proto"
        into = Path(self.root) / "epp" / "extproc"
        well_known = Path(protoc.__file__).parent / "_proto"
        status = protoc.main(
            [
                "protoc",
                f"-I{proto}",
                f"-I{well_known}",
                "--include_imports",
                f"--descriptor_set_out={into / 'ext_proc.binpb'}",
                f"--pyi_out={into}",
                "ext_proc.proto",
            ]
        )
        if status != 0:
            raise RuntimeError(f"protoc failed with status {status} on {proto / 'ext_proc.proto'}")
