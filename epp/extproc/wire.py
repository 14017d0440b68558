# SPDX-License-Identifier: Apache-2.0
"""The messages of the external-processing protocol, as upb classes from a private descriptor pool.

The private pool avoids conflicts with `xds-protos` in the same process, and that package need not be imported.
"""

from importlib.resources import files
from typing import TYPE_CHECKING

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

if TYPE_CHECKING:
    from epp.extproc.ext_proc_pb2 import *  # noqa: F403
else:

    def _load() -> dict[str, type]:
        files_set = descriptor_pb2.FileDescriptorSet.FromString((files("epp.extproc") / "ext_proc.binpb").read_bytes())
        pool = descriptor_pool.DescriptorPool()
        for file in files_set.file:
            pool.Add(file)
        ours = files_set.file[-1]
        return {
            message.name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{ours.package}.{message.name}"))
            for message in ours.message_type
        }

    globals().update(_load())
    FULL_DUPLEX_STREAMED = 4

SERVICE = "envoy.service.ext_proc.v3.ExternalProcessor"
METHOD = "Process"
