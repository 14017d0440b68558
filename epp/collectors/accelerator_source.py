"""Tags every endpoint with its hardware, from object files, from its labels and from what its author says of it."""

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

import msgspec
import structlog

from epp.accelerators.catalogue import find_product
from epp.accelerators.facts import Merged
from epp.accelerators.inventory import Inventory
from epp.accelerators.tagger import EndpointTagger, TaggerOptions
from epp.collectors.object_files import ObjectFiles
from epp.collectors.object_versions import ObjectVersions
from epp.framework.accelerators import AcceleratorDeclaration, AcceleratorKind
from epp.framework.clock import Clock
from epp.framework.datalayer import FollowingTagger, KnowsAccelerators, Report
from epp.framework.durations import parse_duration
from epp.framework.endpoint import Endpoint
from epp.framework.inputs import InputState
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
    missing_file_grace_period: str = "5m"
    """Time for which the objects of a file that is gone or empty stay in effect: `0s` removes them at once. The default
    is what Kubernetes gives a node that cannot be reached before it moves the node's pods."""
    defaults: AcceleratorDeclaration | None = None
    """What an endpoint has of whose hardware nothing else is known."""

    def __post_init__(self) -> None:
        """Check the duration; raises ValueError."""
        try:
            parse_duration(self.missing_file_grace_period)
        except ValueError as error:
            raise ValueError(f"missingFileGracePeriod: {error}") from None


class _Objects(NamedTuple):
    """Versions of the objects in the files, and the inventory of them."""

    versions: ObjectVersions
    inventory: Inventory


class AcceleratorSource(FollowingTagger[AcceleratorSourceParameters], KnowsAccelerators[AcceleratorSourceParameters]):
    """Merges all that is known of an endpoint's hardware into its accelerator tag, field by field.

    What counts first: `overrides` and the endpoint list's own `accelerator`; a class named by the pod, where pods are
    trusted; claims (DRA, then InstaSlice, then TensorFusion); the AcceleratorClass that matches; labels of the node;
    what the pod asks for; built-in tables of products and machine types. Labels of an endpoint stand for those of its
    node where no pod of it is known.

    A new version of a file or of an object that cannot be understood changes nothing: the version before stays in
    effect, and the log, `/healthz` and `llm_d_epp_input_problems` say why. Where there is no version before, the object
    is left out. A file that is gone keeps its objects for `missingFileGracePeriod`.
    """

    plugin_type = "accelerator-data-source"
    writes = (ACCELERATOR,)

    def __init__(
        self, parameters: AcceleratorSourceParameters | None = None, *, name: str = "", clock: Clock | None = None
    ) -> None:
        super().__init__(parameters, name=name, clock=clock)
        self._files = ObjectFiles(self.parameters.paths)
        self._versions = ObjectVersions(self.parameters.missing_file_grace_period)
        self.inventory = Inventory()
        """Inventory of the objects in effect."""
        self._told: frozenset[str] = frozenset()
        self._told_of_endpoints: set[str] = set()
        self._tagger = EndpointTagger(self.inventory, self.parameters)
        if (objects := self._read()) is not None:
            self._take(objects)

    @property
    def inputs(self) -> InputState:
        """Files, and what of them is not in effect."""
        return self._versions.inputs

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
        """Read the files; return whether any of them, or what is in effect of it, is another than before."""
        objects = await asyncio.to_thread(self._read)
        if objects is None:
            return False
        self._take(objects)
        _log.info("accelerator objects taken over", plugin=self.name, problems=len(self.inventory.problems))
        return True

    def _read(self) -> _Objects | None:
        """Return what the files say now; None where nothing changed. Runs in a thread, so it changes nothing itself."""
        versions = self._versions.after(self._files.read(self._versions.files), self.clock.now())
        if versions == self._versions:
            return None
        return _Objects(versions, Inventory.build(versions.decoded(self._files.order), self.inventory))

    def _take(self, objects: _Objects) -> None:
        before = self._versions.files
        self._versions, self.inventory = objects
        self._tagger = EndpointTagger(self.inventory, self.parameters)
        for file, version in before.items():
            if version.objects.missing_since is not None and not self._versions.has_objects(file):
                count = len(version.objects.held)
                _log.warning("objects of a missing file removed", plugin=self.name, file=str(file), objects=count)
        for problem in dict.fromkeys(self.inventory.problems):
            if problem not in self._told:
                _log.warning("accelerator object", plugin=self.name, problem=problem)
        self._told = frozenset(self.inventory.problems)
        self._told_of_endpoints.clear()
