"""Writes trained masters back into a weight file; what training left alone keeps its very bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path

import torch

from stages.contract.recipe import ScaleRule
from stages.nvfp4.codec import Bundle, encode_onto
from stages.weights.bundles import QDATA, SCALE, bundle_payloads, read_bundle
from stages.weights.dat import DatFile, Payload, WrittenFile, rewrite, tensor_bytes
from stages.weights.model_weights import Layout, row_slices


def export(
    source: DatFile, layout: Layout, masters: dict[str, torch.Tensor], rule: ScaleRule, path: Path
) -> WrittenFile:
    """Writes `source` again with trained masters in place of their entries; see `stages.weights.dat.rewrite`.

    Blocks and values that training did not change keep the source's bytes, so an export after 0 steps is the
    source. Memory is bounded by one entry.

    Args:
        source: The weight file that the training started from.
        layout: Of that file.
        masters: Trained parameters by name.
        rule: How block scales are chosen.
        path: The new file; must not exist.
    """
    replaced: dict[str, Payload] = {}
    for name, master in masters.items():
        if name in layout.bundles:
            codes, scales = bundle_payloads(partial(_bundles, source, name, master, rule))
            replaced |= {name + QDATA: codes, name + SCALE: scales}
        else:
            replaced[name] = partial(_plain, source, name, master)
    return rewrite(source, path, replaced)


def _bundles(source: DatFile, name: str, master: torch.Tensor, rule: ScaleRule) -> Iterator[Bundle]:
    """Encodes a master row chunk by row chunk, onto what the source has stored."""
    chunks = list(row_slices(*master.shape))
    stored = _read_ahead(partial(read_bundle, source, name), chunks)
    for rows, bundle in zip(chunks, stored, strict=True):
        bundle = Bundle(bundle.codes.to(master.device), bundle.scales.to(master.device))
        yield encode_onto(bundle, master[rows], rule)


def _read_ahead(read: Callable[[slice], Bundle], chunks: list[slice]) -> Iterator[Bundle]:
    """Reads each chunk while the one before it is encoded."""
    with ThreadPoolExecutor(1) as reader:
        previous: Future[Bundle] | None = None
        for rows in chunks:
            current = reader.submit(read, rows)
            if previous is not None:
                yield previous.result()
            previous = current
        if previous is not None:
            yield previous.result()


def _plain(source: DatFile, name: str, master: torch.Tensor) -> Iterator[memoryview]:
    stored = source.tensor(name).to(master.device)
    unchanged = stored.to(master.dtype) == master
    yield tensor_bytes(torch.where(unchanged, stored, master.to(stored.dtype)))
