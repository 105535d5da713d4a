"""The weight file against `cat`: opening, loading to tensors, rewriting. One table, one JSON.

`python -m benchmarks.dat --folder DIR [--gb 2.9] [--rounds 5] [--json FILE]` makes a synthetic file of a 4B
model's layout in a new folder under DIR and removes it. `cat FILE > /dev/null` and loading take turns in one
run, on a warm page cache; the best of the rounds counts.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from stages.process.process import resident_mib
from stages.weights.dat import DatFile, Payload, rewrite, tensor_bytes, write_dat
from stages.weights.dat_index import ElemType, Spec

HIDDEN, INNER, VOCAB, HEADS, GROUPS = 2560, 9728, 151936, 4096, 1024


def specs(layers: int) -> list[Spec]:
    """Entries of a Qwen3-4B-shaped file."""
    linear = {
        "self_attn.q_proj": (HEADS, HIDDEN),
        "self_attn.k_proj": (GROUPS, HIDDEN),
        "self_attn.v_proj": (GROUPS, HIDDEN),
    }
    linear |= {
        "self_attn.o_proj": (HIDDEN, HEADS),
        "mlp.gate_proj": (INNER, HIDDEN),
        "mlp.up_proj": (INNER, HIDDEN),
    }
    linear |= {"mlp.down_proj": (HIDDEN, INNER)}
    weights = {f"model.layers.{i}.{name}": shape for i in range(layers) for name, shape in linear.items()} | {
        "lm_head": (VOCAB, HIDDEN)
    }
    out = [Spec("model.embed_tokens.weight", ElemType.FLOAT16, (VOCAB, HIDDEN))]
    for name, (rows, columns) in weights.items():
        out.append(Spec(f"{name}.weight.qdata", ElemType.UINT8, (rows, columns // 2)))
        out.append(Spec(f"{name}.weight.scale", ElemType.E4M3, (rows, columns // 16)))
    return out


def _noise(spec: Spec, noise: torch.Tensor) -> Payload:
    return lambda: (
        tensor_bytes(noise[: min(len(noise), spec.nbytes - at)]) for at in range(0, spec.nbytes, len(noise))
    )


def _best(rounds: int, *works: Callable[[], object]) -> list[float]:
    best = [float("inf")] * len(works)
    for _ in range(rounds):
        for place, work in enumerate(works):
            start = time.perf_counter()
            work()
            best[place] = min(best[place], time.perf_counter() - start)
    return best


def measure(folder: Path, gigabytes: float, rounds: int) -> dict[str, float]:
    """Figures of one run: MB/s and MiB."""
    path, noise = folder / "bench.dat", torch.randint(0, 256, (1 << 22,), dtype=torch.uint8)
    layers = max(
        1, min(36, round((gigabytes - 1.0) / 0.0526))
    )  # what the embedding, the head and a layer weigh
    write_dat(path, [(spec, _noise(spec, noise)) for spec in specs(layers)])
    nbytes = path.stat().st_size
    before = resident_mib()
    with DatFile(path) as dat:
        opened = resident_mib()

        def load() -> None:
            for name in dat.entries:
                dat.tensor(name)

        def cat() -> None:
            with Path("/dev/null").open("wb") as null:
                subprocess.run(["cat", str(path)], stdout=null, check=True)

        by_cat, by_load = _best(rounds, cat, load)
        start = time.perf_counter()
        rewrite(dat, folder / "again.dat", {})
        rewriting = time.perf_counter() - start
    return {
        "file_mb": nbytes / 1e6,
        "resident_opened_mib": opened,
        "resident_by_opening_mib": opened - before,
        "cat_mb_s": nbytes / 1e6 / by_cat,
        "load_mb_s": nbytes / 1e6 / by_load,
        "load_of_cat": by_cat / by_load,
        "rewrite_with_sha256_mb_s": nbytes / 1e6 / rewriting,
        "largest_entry_mib": VOCAB * HIDDEN * 2 / 2**20,
        "peak_resident_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description="The weight file against cat.")
    parser.add_argument(
        "--folder",
        type=Path,
        required=True,
        help="where to put the synthetic file (twice its size must be free)",
    )
    parser.add_argument("--gb", type=float, default=2.9, help="its size; at least 1.05")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write the figures here too")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="bench-dat-", dir=arguments.folder))
    try:
        figures = measure(folder, arguments.gb, arguments.rounds)
    finally:
        shutil.rmtree(folder)
    sys.stdout.writelines(f"{key:<26} {value:10.2f}\n" for key, value in figures.items())
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
