"""Turns pip's report of what it would install into requirements.lock: `python .ci/lock.py REPORT.json
requirements.lock`.

Each package has the SHA-256 of the file that pip chose on this machine. Hashes that the lock holds already
for the same version, of other machines' files, are kept: run `make lock` on each platform that the set was
tested on.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

HEAD = """# The tested set with the hashes of its files; made by `make lock` from constraints.txt.
# Without torch, whose wheel differs by index (CPU, CUDA) and machine: constraints.txt pins its version.
# Install with
#   pip install --require-hashes --no-deps -r requirements.lock
"""
LINE = re.compile(r"(\S+)==(\S+)((?: --hash=sha256:[0-9a-f]{64})+)")


def lock(report: str, before: str) -> str:
    """The text of the lock from pip's report and the lock as it was."""
    known = {
        (name, version): set(hashes.split())
        for name, version, hashes in LINE.findall(before.replace(" \\\n   ", ""))
    }
    lines = []
    for item in json.loads(report)["install"]:
        name = re.sub(r"[-_.]+", "-", item["metadata"]["name"]).lower()
        version = item["metadata"]["version"]
        hashes = known.get((name, version), set()) | {
            f"--hash=sha256:{item['download_info']['archive_info']['hashes']['sha256']}"
        }
        lines.append(" \\\n    ".join([f"{name}=={version}", *sorted(hashes)]) + "\n")
    return HEAD + "".join(sorted(lines))


if __name__ == "__main__":
    target = Path(sys.argv[2])
    held = target.read_text(encoding="utf-8") if target.exists() else ""
    target.write_text(lock(Path(sys.argv[1]).read_text(encoding="utf-8"), held), encoding="utf-8")
