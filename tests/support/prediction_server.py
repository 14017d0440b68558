# SPDX-License-Identifier: Apache-2.0
"""A prediction and training server of llm-d, as a double that answers on a real socket."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from tests.support.listening import listening

Times = Callable[[dict[str, Any]], tuple[float, float]]


@dataclass
class PredictionServer:
    """Answers by `times`, in milliseconds; a test changes what it does meanwhile."""

    times: Times = lambda _row: (100.0, 10.0)
    is_ready: bool = True
    status: int = 200
    """Of answers to predictions and training entries."""
    answer: Any = None
    """In place of predictions."""
    hold: asyncio.Event | None = None
    """Predictions wait for it."""
    calls: list[list[dict[str, Any]]] = field(default_factory=list)
    """The rows of each call."""
    entries: list[dict[str, Any]] = field(default_factory=list)
    url: str = ""

    async def predict(self, request: web.Request) -> web.Response:
        rows = (await request.json())["requests"]
        self.calls.append(rows)
        if self.hold is not None:
            await self.hold.wait()
        predictions = [dict(zip(("ttft_ms", "tpot_ms"), self.times(row), strict=True)) for row in rows]
        found = {"predictions": predictions, "failed_predictions": 0, "processing_time_ms": 1.0}
        return web.json_response(found if self.answer is None else self.answer, status=self.status)

    async def train(self, request: web.Request) -> web.Response:
        self.entries += (await request.json())["entries"]
        return web.json_response({}, status=202 if self.status == 200 else self.status)

    async def report(self, _request: web.Request) -> web.Response:
        return web.json_response({"is_ready": self.is_ready, "model_type": "xgboost", "quantile": 0.9})

    @contextlib.asynccontextmanager
    async def serving(self, port: int = 0) -> AsyncIterator["PredictionServer"]:
        app = web.Application()
        app.router.add_post("/predict/bulk/strict", self.predict)
        app.router.add_post("/add_training_data_bulk", self.train)
        app.router.add_get("/status", self.report)
        async with listening(app, port=port) as address:
            self.url = f"http://{address}"
            yield self
