"""Checkpoints of a training, in the container of weight files; each exists whole or not at all.

A checkpoint holds named tensors (masters, optimizer states, clipping), a JSON text (step, rows taken,
figures) and, as the last entry, a SHA-256 over all of it. Random bits need no saving: they are a pure
function of seed, step and position, and the order of rows is replayed from its seed.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch

from stages.contract.events import ExitCode
from stages.contract.fields import Affects
from stages.contract.requests import TrainRequest, checkpoint_path, newest_checkpoint
from stages.contract.serial import to_jsonable
from stages.process.files import Buffer, NoSpaceError, sha256_of
from stages.process.process import Reporter, StageError
from stages.qwen3.batches import EncodedRow
from stages.weights.dat import TORCH_DTYPES, DatFile, Payload, tensor_bytes, write_dat
from stages.weights.dat_index import DatError, ElemType, Spec

META, DIGEST = "meta", "sha256"
PIECE_BYTES = 1 << 24
FREE_KEYS = ("data", "device")
"""Fields of a recipe that affect the result and may differ all the same between the stage that saved a state
and the one that goes on from it: rows count by their content, and where the same bytes come from does not
matter.
"""
_ELEM_TYPES = {
    dtype: elem for elem, dtype in reversed(TORCH_DTYPES.items()) if elem not in (ElemType.RAW, ElemType.E4M3)
}


class UnusableCheckpointError(ValueError):
    """A file that is not a whole checkpoint, or has other tensors than training on this device needs."""


@dataclass
class TrainProgress:
    """How far a training has come; saved with every checkpoint."""

    step: int = 0
    """Steps done."""
    rows: int = 0
    """Rows taken so far, all epochs together."""
    ratio_sum: float = 0.0
    """Sum of the finite update ratios."""
    ratio_count: int = 0
    """Number of the finite update ratios."""
    figures: dict[str, float] = field(default_factory=dict)
    """For the result: first and last loss, tokens."""


def fingerprint(request: TrainRequest, rows: list[EncodedRow], weight: Path) -> str:
    """SHA-256 over all that decides a training's course: recipe, rows as tokens, input weight. Reads the
    weight once.
    """
    affecting = request.values(Affects.RESULT, Affects.RESULT_AND_ANSWERS)
    recipe = {key: to_jsonable(value) for key, value in affecting.items() if key not in FREE_KEYS}
    digest = hashlib.sha256(json.dumps(recipe, sort_keys=True).encode())
    for row in rows:
        digest.update(json.dumps([row.prompt, row.answer]).encode())
    digest.update(sha256_of(weight).encode())
    return digest.hexdigest()


def save(path: Path, tensors: Mapping[str, torch.Tensor], progress: TrainProgress, key: str) -> None:
    """Writes a checkpoint.

    Args:
        path: Must not exist.
        tensors: All tensors of the training by name. Each is copied to CPU memory while it is written.
        progress: Saved with them.
        key: Of `fingerprint`.

    Raises:
        NoSpaceError: if the disk is too full; nothing is left behind.
    """
    digest = hashlib.sha256()

    def hashed(spec: Spec, pieces: Iterator[Buffer]) -> Iterator[Buffer]:
        digest.update(spec.header())
        for piece in pieces:
            digest.update(piece)
            yield piece

    def item(spec: Spec, tensor: torch.Tensor) -> tuple[Spec, Payload]:
        return spec, lambda: hashed(spec, iter([tensor_bytes(tensor)]))

    meta = torch.frombuffer(
        bytearray(json.dumps({"key": key, **asdict(progress)}).encode()), dtype=torch.uint8
    )
    named = {META: meta, **tensors}
    items = [item(Spec(name, _ELEM_TYPES[t.dtype], tuple(t.shape)), t) for name, t in named.items()]
    write_dat(path, [*items, (Spec(DIGEST, ElemType.UINT8, (32,)), lambda: iter([digest.digest()]))])


def restore(path: Path, tensors: Mapping[str, torch.Tensor], key: str) -> TrainProgress:
    """Copies a checkpoint into the tensors of a trainer that has not trained yet.

    Args:
        path: A file that `save` wrote.
        tensors: Overwritten; names, shapes and dtypes must be those saved.
        key: Of `fingerprint`, for the request that resumes.

    Raises:
        UnusableCheckpointError: if the file is damaged or was saved on another kind of device; the tensors
            are unchanged then.
        StageError: `BAD_INPUT` if it is a checkpoint of another training.
    """
    try:
        with DatFile(path) as dat:
            _require_whole(dat)
            meta = json.loads(bytes(dat.tensor(META).numpy()))
            wanted = {name: (_ELEM_TYPES[t.dtype], tuple(t.shape)) for name, t in tensors.items()}
            held = {
                name: (e.elem_type, e.shape) for name, e in dat.entries.items() if name not in (META, DIGEST)
            }
            if meta.pop("key") != key:
                raise StageError(
                    ExitCode.BAD_INPUT,
                    f"resume: {path}: the state of another training: leave resume empty, or name its own",
                )
            if wanted != held:  # the same recipe on a GPU and on a CPU may keep other tensors
                raise UnusableCheckpointError(
                    f"{path}: saved on another kind of device: its tensors are not those of this one"
                )
            with torch.no_grad():
                for name, tensor in tensors.items():
                    tensor.copy_(dat.tensor(name))
    except (DatError, FileNotFoundError) as error:
        raise UnusableCheckpointError(str(error)) from error
    return TrainProgress(**meta)


def _require_whole(dat: DatFile) -> None:
    digest = hashlib.sha256()
    names = list(dat.entries)
    if names[:1] != [META] or names[-1] != DIGEST:
        raise UnusableCheckpointError(
            f"{dat.path}: no saved state: it does not begin with {META!r} and end with {DIGEST!r}"
        )
    for name in names[:-1]:
        entry = dat.entries[name]
        digest.update(Spec(entry.name, entry.elem_type, entry.shape).header())
        with dat.raw(name) as view:
            for start in range(0, len(view), PIECE_BYTES):
                with view[start : start + PIECE_BYTES] as piece:
                    digest.update(piece)
    if bytes(dat.tensor(DIGEST).numpy()) != digest.digest():
        raise UnusableCheckpointError(f"{dat.path}: its content is not what was written: damaged")


class Checkpoints:
    """The checkpoints of one stage: saved at a fixed interval, each deleted once the next one is whole."""

    def __init__(self, request: TrainRequest, rows: list[EncodedRow], reporter: Reporter) -> None:
        self._every = request.checkpoint_every
        self._folder = Path(request.checkpoints)
        self._resume = Path(request.resume) if request.resume else None
        self._reporter = reporter
        self._warned = False
        self._key = (
            fingerprint(request, rows, Path(request.input_weight)) if self._every or self._resume else ""
        )

    @property
    def on(self) -> bool:
        """Whether checkpoints are saved."""
        return self._every > 0

    def due(self, step: int) -> bool:
        """Whether to save a checkpoint after this step."""
        return self.on and step % self._every == 0

    def restore(self, tensors: Mapping[str, torch.Tensor]) -> TrainProgress:
        """Loads the checkpoint to resume from. Without a usable one, training starts at step 0.

        Raises:
            StageError: `BAD_INPUT` if it is a checkpoint of another training.
        """
        if self._resume is None:
            return TrainProgress()
        try:
            progress = restore(self._resume, tensors, self._key)
        except UnusableCheckpointError as error:
            self._reporter.note(f"resume: {error}; trained from the beginning")
            return TrainProgress()
        self._reporter.note(f"resume: goes on after step {progress.step} ({self._resume})")
        return progress

    def save(self, tensors: Mapping[str, torch.Tensor], progress: TrainProgress) -> None:
        """Saves a checkpoint and deletes the previous one. A full disk is noted once; training goes on."""
        path, previous = checkpoint_path(self._folder, progress.step), newest_checkpoint(self._folder)
        if path == previous:
            return
        try:
            save(path, tensors, progress, self._key)
        except NoSpaceError as error:
            if not self._warned:
                self._reporter.note(f"no state was saved after step {progress.step}: {error}")
            self._warned = True
            return
        if previous:
            previous.unlink()

    def discard(self) -> None:
        """Deletes the checkpoints, once the weight is exported."""
        if self.on and self._folder.is_dir():
            shutil.rmtree(self._folder)
