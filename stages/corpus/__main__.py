"""Writes all row and probe files: `python -m stages.corpus OUT_DIR`. Existing files with other content are an
error.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from stages.contract.events import ExitCode
from stages.corpus import corpus, experiments, probes
from stages.corpus.examples import Example


def rendered() -> Iterator[tuple[str, bytes]]:
    """Each file's path below the output folder, and its bytes."""
    yield "base/train.tsv", _tsv(corpus.base_rows(), header=True)
    for mix in experiments.MIXES:
        yield mix.path, _tsv(experiments.rows(mix), mix.header)
    for file in probes.files():
        yield file.path, file.text().encode()


def main(argv: Sequence[str] | None = None) -> int:
    """Writes the files and says so, a line for each.

    Returns:
        `ExitCode.OK`, or `ExitCode.BAD_INPUT` if there are files with other content; then nothing is written.
    """
    parser = argparse.ArgumentParser(prog="python -m stages.corpus", description=__doc__)
    parser.add_argument(
        "out_dir",
        type=Path,
        help="folder that receives base/, stageA/ …, probes/; `datasets` in this project",
    )
    out: Path = parser.parse_args(argv).out_dir
    made = [(out / path, data) for path, data in rendered()]
    blocked = [path for path, data in made if path.exists() and path.read_bytes() != data]
    for path in blocked:
        sys.stderr.write(f"{path}: exists with other content: move it away, or name another folder\n")
    if blocked:
        return ExitCode.BAD_INPUT
    for number, (path, data) in enumerate(made, start=1):
        note = ", unchanged" if path.exists() else ""
        if not note:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        lines = data.count(b"\n")
        sys.stdout.write(f"[{number}/{len(made)}] {path}: {lines} lines, {len(data)} bytes{note}\n")
    return ExitCode.OK


def _tsv(rows: Sequence[Example], header: bool) -> bytes:
    text = "prompt\ttarget\n" if header else ""
    return (text + "".join(f"{row.prompt}\t{row.target}\n" for row in rows)).encode()


if __name__ == "__main__":
    sys.exit(main())
