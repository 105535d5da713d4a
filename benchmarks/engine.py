"""Ours and the peers on the 4B workload, side by side in one go on a GPU machine: `make bench-engine`.

Every run is a process of its own. Peers whose library is not installed are listed as absent. Writes one table
and one JSON to `benchmarks/results/`, with versions, the device, the floor and the ratios. The floor is the
bytes that must move, 14.2 a parameter (4-bit weight read three times, gradient written and read, master and
states read and written), at the measured copy speed.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from benchmarks.peers import PEERS

PARAMETERS = 4_022_468_096
FLOOR_BYTES = 14.2
SHAPES = ((1, 96), (8, 512))
OURS = "ours: NVFP4 forward, 8-bit states, one CUDA graph"
OWN_HEAD = f"{OURS}, a head of its own"


def copy_speed() -> float:
    """Bytes read and written a second by a device-to-device copy."""
    source = torch.empty(1 << 32, dtype=torch.uint8, device="cuda").random_()
    target = torch.empty_like(source)
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    for repeat in range(13):
        if repeat == 3:
            start.record()
        target.copy_(source)
    end.record()
    torch.cuda.synchronize()
    return 10 * 2 * (1 << 32) / (start.elapsed_time(end) / 1e3)


def run(module: str, options: dict[str, Any], timeout: float = 240) -> dict[str, Any]:
    """What `python -m module OPTIONS` measured, or its error."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", module, json.dumps(options)],
            capture_output=True,
            text=True,
            timeout=timeout,
        )
    except subprocess.TimeoutExpired:
        return {"error": f"more than {timeout:.0f} s"}
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    return (
        json.loads(lines[-1])
        if lines
        else {"error": (done.stderr.strip().splitlines() or ["no output"])[-1][:200]}
    )


def versions() -> dict[str, str]:
    """Of all that is compared; `absent` where it is not installed."""
    found = {
        "python": sys.version.split()[0],
        "cuda": str(torch.version.cuda),
        "device": torch.cuda.get_device_name(),
    }
    for name in ("torch", "triton", "transformers", "bitsandbytes", "torchao", "flashoptim"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "absent"
    return found


def runs(names: list[str]) -> list[dict[str, Any]]:
    """All measurements, ours first in each shape."""
    out = []
    for batch, seq_len in SHAPES:
        todo: list[tuple[str, str, dict[str, Any]]] = [
            ("benchmarks.ours", OURS, {"checkpointing": c}) for c in (False, True)
        ]
        todo += [("benchmarks.ours", OWN_HEAD, {"checkpointing": c, "tied": False}) for c in (False, True)]
        todo += [("benchmarks.peers", PEERS[n], {"peer": n, "checkpointing": False}) for n in names]
        todo += [("benchmarks.peers", PEERS["torch"], {"peer": "torch", "checkpointing": True})]
        for module, what, options in todo:
            options |= {"batch": batch, "seq_len": seq_len}
            out.append({"what": what, **options, **run(module, options)})
            sys.stderr.write(json.dumps(out[-1]) + "\n")
    return out


def ratios(rows: list[dict[str, Any]], floor_ms: float) -> dict[str, float]:
    """The figures that the targets are about."""
    good = [r for r in rows if "error" not in r and r["what"] != OWN_HEAD]

    def pick(batch: int, ours: bool, **wanted: Any) -> list[dict[str, Any]]:
        return [
            r
            for r in good
            if r["batch"] == batch
            and (r["what"] == OURS) == ours
            and all(r.get(k) == v for k, v in wanted.items())
        ]

    small, large = pick(1, True, checkpointing=False)[0], pick(8, True, checkpointing=False)[0]
    checkpointed = pick(8, True, checkpointing=True)[0]
    reference = pick(8, False, peer="torch", checkpointing=False)[0]
    return {
        "1x96 peak GiB": small["alloc_gib"],
        "1x96 ms": small["ms"],
        "1x96 ms over the fastest peer's": small["ms"] / min(r["ms"] for r in pick(1, False)),
        "1x96 ms over the floor": small["ms"] / floor_ms,
        "8x512 peak GiB, checkpointing": checkpointed["alloc_gib"],
        "8x512 ms over torch AdamW's, neither checkpointing": large["ms"] / reference["ms"],
        "8x512 ms over torch AdamW's, ours checkpointing": checkpointed["ms"] / reference["ms"],
    }


def real_figures(real: dict[str, Any]) -> dict[str, float]:
    """Those of `benchmarks.real`: the worse of its two runs; none if it failed."""
    if "error" in real:
        return {}
    return {
        "real training, rows of mixed length, 8 × ≤ 192: steps a second": min(real["steps_a_second"]),
        "its pace over the bare graphs'": min(real["pace_of_bare_replay"]),
        "its effective update ratio at 1e-5": real["update_ratio_mean"],
        "its two exports are the same bytes (1: yes)": float(real["same_export"]),
        "load the .dat to a model ready to train, s": max(real["seconds_load"]),
        "export, s": max(real["seconds_export"]),
    }


def table(rows: list[dict[str, Any]], figures: dict[str, float], head: str) -> str:
    """Markdown."""
    lines = [
        head,
        "",
        "| what | batch × tokens | checkpointing | peak GiB | ms a step (min to max) |",
        "|---|---|---|---|---|",
    ]
    for r in rows:
        shape = f"| {r['what']} | {r['batch']} × {r['seq_len']} | {'yes' if r['checkpointing'] else 'no'} |"
        measured = (
            f" {r['alloc_gib']:.2f} | {r['ms']:.1f} ({r['ms_min']:.1f} to {r['ms_max']:.1f}) |"
            if "ms" in r
            else f" {r['error']} | |"
        )
        lines.append(shape + measured)
    lines += ["", "| figure | measured |", "|---|---|", *(f"| {k} | {v:.3f} |" for k, v in figures.items())]
    return "\n".join(lines) + "\n"


def main(argv: list[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--peers", nargs="*", default=list(PEERS), choices=list(PEERS))
    arguments = parser.parse_args(argv)
    if not torch.cuda.is_available():
        sys.stderr.write("bench-engine: needs a CUDA device; this machine shows none\n")
        return 2
    date, found, speed = datetime.now(UTC).strftime("%Y-%m-%d"), versions(), copy_speed()
    torch.cuda.empty_cache()
    floor_ms = PARAMETERS * FLOOR_BYTES / speed * 1e3
    rows = runs(arguments.peers)
    real = run("benchmarks.real", {}, timeout=400)
    sys.stderr.write(json.dumps(real) + "\n")
    figures = ratios(rows, floor_ms) | real_figures(real)
    listed = ", ".join(f"{k} {v}" for k, v in found.items())
    head = f"# Engine bench, {date}\n\n{listed}.\n"
    head += f"Copy speed {speed / 1e12:.2f} TB/s; floor of a small step {floor_ms:.1f} ms."
    arguments.out.mkdir(parents=True, exist_ok=True)
    text = table(rows, figures, head)
    (arguments.out / "engine.md").write_text(text, encoding="utf-8")
    record = {
        "date": date,
        "versions": found,
        "copy_bytes_per_s": speed,
        "floor_ms": floor_ms,
        "figures": figures,
        "runs": rows,
        "real": real,
    }
    (arguments.out / "engine.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    sys.stdout.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
