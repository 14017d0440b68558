# SPDX-License-Identifier: Apache-2.0
"""Producer of the media that each endpoint is expected to hold in its encoder cache, and token estimates of media."""

import sys
from array import array
from collections import Counter
from collections.abc import Sequence
from math import isfinite
from secrets import token_bytes
from typing import Annotated, Literal, TypeAlias

import msgspec
import numpy as np
import xxhash
from msgspec import Meta

from epp.framework import (
    MEDIA_MATCH,
    Candidates,
    DataKey,
    EndpointObserver,
    Headers,
    Media,
    MediaMatch,
    Parameters,
    PreRequest,
    Producer,
    Request,
    SchedulingResult,
    Snapshot,
    headers,
)
from epp.framework.limits import Corrected, CountOrDefault, NaturalOrDefault
from epp.framework.plugin_status import Distribution, PluginMetric, Sample, endpoint_state
from epp.framework.request import BYTES_PER_TOKEN
from epp.plugins.prefix_cache.index import PrefixIndex

_Rate: TypeAlias = Annotated[float, Meta(gt=0, le=1e6), Corrected()]
_DIGEST_BYTES = 16
"""Size of the hash that a placeholder repeats."""
_MOST_BYTES = 8192 * BYTES_PER_TOKEN
"""Largest placeholder."""
_MOST_TOKENS = 1_000_000
"""Maximum tokens of one item, above any context length; clients may claim any size."""


class Resolution(Parameters, frozen=True):
    """Width and height in pixels."""

    width: CountOrDefault = 640
    """Width."""
    height: CountOrDefault = 360
    """Height."""


class StaticImage(Parameters, frozen=True):
    """Parameters of the mode `static`."""

    static_token: CountOrDefault = 1
    """Tokens of every image."""


class ByPixels(Parameters, frozen=True):
    """Parameters of the mode `dynamic`."""

    factor: CountOrDefault = 1024
    """Pixels per token."""


class ImageEstimate(Parameters, frozen=True):
    """Tokens of an image: its pixels over `dynamic.factor`, or a fixed number."""

    mode: Literal["dynamic", "static"] = "dynamic"
    """`dynamic`: width times height over `factor`. `static`: `staticToken`."""
    default_resolution: Resolution = Resolution()
    """Size of images given by URL, and of formats other than PNG, GIF and JPEG."""
    static: StaticImage = StaticImage()
    """Parameters of the mode `static`."""
    dynamic: ByPixels = ByPixels()
    """Parameters of the mode `dynamic`."""

    def tokens(self, media: Media) -> int:
        """Return the tokens of an image; at least 1."""
        if self.mode == "static":
            return self.static.static_token
        pixels = media.width * media.height or self.default_resolution.width * self.default_resolution.height
        return min(max(1, pixels // self.dynamic.factor), _MOST_TOKENS)


class StaticFrame(Parameters, frozen=True):
    """Parameters of the mode `static`."""

    num_tokens_per_frame: CountOrDefault = 1
    """Tokens of every frame."""


class TokensPerFrame(Parameters, frozen=True):
    """Tokens of one frame: its pixels over `dynamic.factor`, or a fixed number."""

    mode: Literal["dynamic", "static"] = "dynamic"
    """`dynamic`: width times height over `factor`. `static`: `numTokensPerFrame`."""
    static: StaticFrame = StaticFrame()
    """Parameters of the mode `static`."""
    dynamic: ByPixels = ByPixels()
    """Parameters of the mode `dynamic`."""


class SampledFrames(Parameters, frozen=True):
    """Parameters of the mode `sampled`."""

    sample_fps: _Rate = msgspec.field(default=1.0, name="sampleFPS")
    """Frames that the model samples from each second."""
    temporal_patch_size: NaturalOrDefault = 0
    """Frames that the model merges into one; below 2 for none."""


class StridedFrames(Parameters, frozen=True):
    """Parameters of the mode `strided`."""

    default_source_fps: _Rate = msgspec.field(default=24.0, name="defaultSourceFPS")
    """Frames per second of the video without the header `x-llm-d-video-fps`."""
    frame_stride: CountOrDefault = 1
    """Distance between two sampled frames."""


class Frames(Parameters, frozen=True):
    """Frames that a model samples from a video."""

    mode: Literal["sampled", "strided"] = "sampled"
    """`sampled`: `sampleFPS` frames of each second. `strided`: every `frameStride`-th frame of the video."""
    min_frames: NaturalOrDefault = 0
    """Minimum number of frames."""
    max_frames: NaturalOrDefault = 0
    """Maximum number of frames; 0 for no limit."""
    sampled: SampledFrames = SampledFrames()
    """Parameters of the mode `sampled`."""
    strided: StridedFrames = StridedFrames()
    """Parameters of the mode `strided`."""

    def count(self, seconds: float, fps: float) -> int:
        """Return the number of sampled frames of a video; `fps` is 0 if unknown."""
        sampled, strided = self.sampled, self.strided
        if self.mode == "strided":
            found, merged = int(seconds * (fps or strided.default_source_fps)) // strided.frame_stride, 1
        else:
            found, merged = int(seconds * sampled.sample_fps), max(1, sampled.temporal_patch_size)
        return min(max(found, self.min_frames), self.max_frames or sys.maxsize) // merged


class VideoEstimate(Parameters, frozen=True):
    """Tokens of a video: its frames times the tokens of one frame."""

    default_resolution: Resolution = Resolution()
    """Size of videos without the header `x-llm-d-video-resolution`."""
    default_duration: _Rate = 10.0
    """Duration of videos without the header `x-llm-d-video-duration-seconds`, in seconds."""
    tokens_per_frame: TokensPerFrame = TokensPerFrame()
    """Tokens of one frame."""
    frames: Frames = Frames()
    """Frames of a video."""
    max_video_tokens: NaturalOrDefault = 0
    """Maximum tokens of one video; 0 for no limit."""

    def tokens(self, fields: Headers) -> int:
        """Return the tokens of a video of a request with these headers; at least 1."""
        seconds = _number(fields, headers.VIDEO_DURATION) or self.default_duration
        frames = self.frames.count(seconds, _number(fields, headers.VIDEO_FPS))
        frame = self.tokens_per_frame
        if frame.mode == "static":
            tokens = frames * frame.static.num_tokens_per_frame
        else:
            width, height = _resolution(fields) or (self.default_resolution.width, self.default_resolution.height)
            tokens = frames * max(1, width * height // frame.dynamic.factor)
        return min(max(1, tokens), self.max_video_tokens or _MOST_TOKENS, _MOST_TOKENS)


def with_sizes(prompt: bytes, media: Sequence[Media], sizes: Sequence[int]) -> bytes:
    """Return the prompt with placeholders of these sizes in tokens, each up to a limit."""
    pieces: list[bytes] = []
    end = 0
    for one, size in zip(media, sizes, strict=True):
        pieces.append(prompt[end : one.offset])
        digest = prompt[one.offset : one.offset + _DIGEST_BYTES]
        length = min(max(size * BYTES_PER_TOKEN, _DIGEST_BYTES), _MOST_BYTES)
        pieces.append((digest * -(-length // _DIGEST_BYTES))[:length])
        end = one.offset + one.tokens * BYTES_PER_TOKEN
    return b"".join((*pieces, prompt[end:]))


def describes_videos(fields: Headers) -> bool:
    return any(name in fields for name in (headers.VIDEO_DURATION, headers.VIDEO_FPS, headers.VIDEO_RESOLUTION))


def _number(fields: Headers, name: str) -> float:
    """Return the number in a header; 0 if it is missing, malformed or not above 0."""
    try:
        found = float(fields.get(name, ""))
    except ValueError:
        return 0.0
    return found if isfinite(found) and found > 0 else 0.0


def _resolution(fields: Headers) -> tuple[int, int] | None:
    """Return the `WIDTHxHEIGHT` of the header; None if it is missing or malformed."""
    width, _, height = fields.get(headers.VIDEO_RESOLUTION, "").lower().partition("x")
    try:
        found = int(width[:9]), int(height[:9])
    except ValueError:
        return None
    return found if min(found) > 0 else None


_MB_PER_ITEM = 2
_QUERIES = PluginMetric(
    "encoder_cache_queries", "Distinct media of routed requests, by modality.", ("modality",), is_counter=True
)
_HITS = PluginMetric(
    "encoder_cache_hits",
    "Distinct media of routed requests that the picked endpoint was expected to hold.",
    ("pod", "modality"),
    is_counter=True,
)
_HIT_RATIO = PluginMetric(
    "encoder_cache_hit_ratio",
    "Share of the media of a request that the picked endpoint is expected to hold, 0..1.",
    bounds=(0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0),
)


class MMEmbeddingsCacheParameters(Parameters, frozen=True):
    """Size of the encoder caches."""

    cache_size_in_mb_per_server: CountOrDefault = msgspec.field(default=4096, name="cacheSizeInMBPerServer")
    """Size of the encoder cache of each endpoint in MB; one item counts as 2 MB."""


class _Item(msgspec.Struct, frozen=True, gc=False):
    kind: str
    chain: "array[int]"
    """A chain of one block for the index: the hash of the item."""


class MMEmbeddingsCacheProducer(
    Producer[MMEmbeddingsCacheParameters],
    PreRequest[MMEmbeddingsCacheParameters],
    EndpointObserver[MMEmbeddingsCacheParameters],
):
    """Publishes, for each slot, the number of the request's media that were sent there and not yet evicted.

    Media are images, audio clips and videos; media with the same URL, data or hash are equal. The primary target of a
    request is expected to hold all of them afterwards. The `cacheSizeInMBPerServer / 2` most recently used items of
    each endpoint are remembered. The first 256 items of a request count, or 2,048 with hashes from vLLM's tokenizer.
    """

    plugin_type = "mm-embeddings-cache-producer"
    metrics = (_QUERIES, _HITS, _HIT_RATIO)

    def setup(self) -> None:
        self._limit = max(1, self.parameters.cache_size_in_mb_per_server // _MB_PER_ITEM)
        self._match_key = MEDIA_MATCH.produced_by(self.name)
        self._items_key: DataKey[Sequence[_Item]] = DataKey("media-items", self.plugin_type, self.name)
        self._added_key: DataKey[Sequence[_Item]] = DataKey("media-items-added", self.plugin_type, self.name)
        self._index = PrefixIndex()
        self._secret = int.from_bytes(token_bytes(8))  # prevents clients from making hashes collide
        self._queries: Counter[str] = Counter()
        self._hits: dict[int, tuple[str, Counter[str]]] = {}
        """Name of the endpoint and hits by modality, for each slot."""
        self._ratios = Distribution(_HIT_RATIO.bounds)
        self.writes = (self._match_key,)

    @property
    def samples(self) -> Sequence[Sample]:
        hits = [
            Sample(_HITS, count, (name, kind))
            for name, by_kind in list(self._hits.values())
            for kind, count in list(by_kind.items())
        ]
        queries = [Sample(_QUERIES, count, (kind,)) for kind, count in list(self._queries.items())]
        return (*queries, *hits, Sample(_HIT_RATIO, self._ratios))

    def dump_state(self, snapshot: Snapshot) -> object | None:
        items = np.array([self._index.entries(slot) for slot in range(snapshot.capacity)], dtype=np.int64)
        return {"distinctItems": len(self._index), **endpoint_state(snapshot, {"items": items})}

    def produce(self, request: Request, candidates: Candidates) -> None:
        items = request.get(self._items_key)
        if items is None:
            kinds = {digest: kind for kind, digest in request.body.media_hashes}
            items = [
                _Item(kind, array("Q", (xxhash.xxh3_64_intdigest(digest, self._secret),)))
                for digest, kind in kinds.items()
            ]
            request.put(self._items_key, items)
        matched = np.zeros(candidates.snapshot.capacity, dtype=np.int32)
        for item in items:
            matched += self._index.match(item.chain, len(matched))
        request.put(self._match_key, MediaMatch(matched, len(items)))

    def pre_request(self, request: Request, result: SchedulingResult) -> None:
        items = request.get(self._items_key)
        if not items:
            return
        slot = result.primary.slot
        added = [item for item in items if not self._index.match(item.chain, slot + 1).item(slot)]
        for item in items:
            self._index.record(slot, item.chain, self._limit)
        request.put(self._added_key, added)
        kinds = Counter(item.kind for item in items)
        self._queries += kinds
        _, hits = self._hits.setdefault(slot, (result.targets[0].name, Counter()))
        hits += kinds - Counter(item.kind for item in added)
        self._ratios.observe(1.0 - len(added) / len(items))

    def request_failed(self, request: Request, result: SchedulingResult) -> None:
        for item in request.get(self._added_key) or ():
            self._index.withdraw(result.primary.slot, item.chain)

    def slots_removed(self, slots: Sequence[int]) -> None:
        self._index.forget(*slots)
        for slot in slots:
            self._hits.pop(slot, None)
