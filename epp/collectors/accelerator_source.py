"""Tags every endpoint with its hardware, from object files, from its labels and from what its author says of it."""

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import structlog

from epp.accelerators.catalogue import find_product
from epp.accelerators.decode import Decoded, decode_documents
from epp.accelerators.facts import Merged
from epp.accelerators.inventory import Inventory
from epp.accelerators.tagger import EndpointTagger, TaggerOptions
from epp.collectors.object_files import Documents, ObjectFiles
from epp.framework.accelerators import AcceleratorDeclaration, AcceleratorKind
from epp.framework.clock import Clock
from epp.framework.datalayer import FollowingTagger, KnowsAccelerators, Report
from epp.framework.endpoint import Endpoint
from epp.framework.snapshot import ACCELERATOR
from epp.watch import changes

_MOST_TOLD = 100
"""Problems of endpoints that are said before there is silence: pools may be large and wrong all over."""

_log = structlog.get_logger()


class AcceleratorSourceParameters(TaggerOptions, frozen=True):
    """Where objects are, and whom to believe."""

    paths: tuple[str, ...] = ()
    """Files, or directories of files (.yaml, .yml, .json), with the objects of a cluster: AcceleratorClass, Node, Pod,
    Instaslice, NodeAccelerator, AllocationClaim, GPU, GPUNode, ResourceSlice, ResourceClaim, DeviceClass,
    ResourceFlavor, VariantAutoscaling and cost ConfigMaps, several to a file if need be."""
    watch_files: bool = True
    """Take over new versions of the files, all at once, as soon as they are there."""
    defaults: AcceleratorDeclaration | None = None
    """What an endpoint has of whose hardware nothing else is known."""


class AcceleratorSource(FollowingTagger[AcceleratorSourceParameters], KnowsAccelerators[AcceleratorSourceParameters]):
    """Merges all that is known of an endpoint's hardware into its accelerator tag, field by field.

    What counts first: `overrides` and the endpoint list's own `accelerator`; a class named by the pod, where pods are
    trusted; claims (DRA, then InstaSlice, then TensorFusion); the AcceleratorClass that matches; labels of the node;
    what the pod asks for; built-in tables of products and machine types. Labels of an endpoint stand for those of its
    node where no pod of it is known. An object that cannot be understood is left out, with a line in the log.
    """

    plugin_type = "accelerator-data-source"
    writes = (ACCELERATOR,)

    def __init__(
        self, parameters: AcceleratorSourceParameters | None = None, *, name: str = "", clock: Clock | None = None
    ) -> None:
        super().__init__(parameters, name=name, clock=clock)
        self._files = ObjectFiles(self.parameters.paths)
        self.inventory = Inventory()
        """What the objects said when they were last read."""
        self._told: frozenset[str] = frozenset()
        self._told_of_endpoints: set[str] = set()
        self._tagger = EndpointTagger(self.inventory, self.parameters)
        changed = self._files.read_changed()
        if changed:
            self._take(self._build(changed))

    def tag(self, endpoint: Endpoint) -> Report:
        """Return the tag; what was wrong on the way to it is said once for as long as the objects hold."""
        merged = self.merged(endpoint)
        for problem in (*merged.conflicts, *merged.warnings):
            if problem not in self._told_of_endpoints and len(self._told_of_endpoints) < _MOST_TOLD:
                self._told_of_endpoints.add(problem)
                _log.warning("accelerator of endpoint", plugin=self.name, endpoint=endpoint.id, problem=problem)
        return Report(attributes={ACCELERATOR: merged.tag})

    def merged(self, endpoint: Endpoint) -> Merged:
        """Return the tag, and what was wrong on the way to it."""
        merged = self._tagger.tag(endpoint)
        defaults = self.parameters.defaults
        if merged.tag.kind is not AcceleratorKind.UNKNOWN or defaults is None or endpoint.accelerator is not None:
            return merged
        assumed = self._tagger.tag(dataclasses.replace(endpoint, accelerator=defaults))
        provenance = {
            field: "defaults" if source == "endpoint list" else source
            for field, source in assumed.tag.provenance.items()
        }
        return msgspec.structs.replace(assumed, tag=msgspec.structs.replace(assumed.tag, provenance=provenance))

    def knows(self, name: str) -> bool:
        """Say whether an AcceleratorClass of the objects, or a product of the catalogue, has that name."""
        wanted = name.lower()
        return any(wanted == known.lower() for known in self.inventory.classes) or find_product(name) is not None

    async def follow(self, changed: Callable[[], Awaitable[None]]) -> None:
        """Take over new versions of the files until cancelled."""
        if not (self.parameters.paths and self.parameters.watch_files):
            return
        async for _ in changes(*map(Path, self.parameters.paths)):
            if await self.look():
                await changed()

    async def look(self) -> bool:
        """Take the files over if any of them is another one than before; return whether one is."""
        inventory = await asyncio.to_thread(self._read)
        if inventory is None:
            return False
        self._take(inventory)
        _log.info("accelerator objects taken over", plugin=self.name, problems=len(inventory.problems))
        return True

    def _read(self) -> Inventory | None:
        changed = self._files.read_changed()
        return None if changed is None else self._build(changed)

    def _build(self, files: list[Documents]) -> Inventory:
        unreadable = [f"{file.origin}: {file.problem}" for file in files if file.problem]
        everything = Decoded((), tuple(unreadable), len(unreadable))
        for file in files:
            everything = everything.with_more(decode_documents(file.content, file.origin))
        return Inventory.build(everything, self.inventory)

    def _take(self, inventory: Inventory) -> None:
        self.inventory = inventory
        self._tagger = EndpointTagger(inventory, self.parameters)
        for problem in dict.fromkeys(inventory.problems):
            if problem not in self._told:
                _log.warning("accelerator object", plugin=self.name, problem=problem)
        self._told = frozenset(inventory.problems)
        self._told_of_endpoints.clear()
