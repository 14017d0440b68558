# SPDX-License-Identifier: Apache-2.0
"""`kubectl apply --filename FILE`, the one command of it that documents need, for machines without kubectl."""

import asyncio
import os
import sys
from pathlib import Path

import yaml

from tests.support.kube.apiserver import Access
from tests.support.kube.client import client_of


async def apply(config: dict, documents: list[dict]) -> None:
    """Apply objects as the user of a kubeconfig."""
    (cluster,), (user,) = config["clusters"], config["users"]
    port = int(cluster["cluster"]["server"].rpartition(":")[2])
    access = Access(port, Path(cluster["cluster"]["certificate-authority"]))
    async with client_of(access, user["user"]["token"]) as client:
        for document in documents:
            applied = await client.apply(document)
            print(f"{applied['kind'].lower()}/{applied['metadata']['name']} serverside-applied")  # noqa: T201


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["apply", "--filename", file]:
            config = yaml.safe_load(Path(os.environ["KUBECONFIG"]).read_text())
            asyncio.run(apply(config, list(yaml.safe_load_all(Path(file).read_text()))))
        case other:
            sys.exit(f"this is not kubectl, and knows no {' '.join(other)}")
