"""The lock with hashes: it is the tested set, all of it but torch, and each run of its maker keeps what other
platforms added.
"""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
specification = importlib.util.spec_from_file_location("lock", ROOT / ".ci" / "lock.py")
assert specification is not None and specification.loader is not None
maker = importlib.util.module_from_spec(specification)
specification.loader.exec_module(maker)


def pins(text: str) -> dict[str, str]:
    return dict(re.findall(r"^([A-Za-z0-9._-]+)==([^\s;]+)", text, re.MULTILINE))


def test_the_lock_is_the_tested_set() -> None:
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    wanted = pins((ROOT / "constraints.txt").read_text(encoding="utf-8"))
    del wanted["torch"]
    assert pins(lock) == wanted, "constraints.txt has changed: run `make lock`"
    assert len(re.findall(r"--hash=sha256:[0-9a-f]{64}", lock)) >= len(wanted)


def report(name: str, version: str, sha256: str) -> str:
    item = {
        "metadata": {"name": name, "version": version},
        "download_info": {"archive_info": {"hashes": {"sha256": sha256}}},
    }
    return json.dumps({"install": [item]})


def test_hashes_of_other_platforms_stay_as_long_as_the_version_does() -> None:
    first = maker.lock(report("Some_Package", "1.0", "a" * 64), "")
    both = maker.lock(report("some.package", "1.0", "b" * 64), first)
    assert "some-package==1.0" in both and "a" * 64 in both and "b" * 64 in both
    assert maker.lock(report("some-package", "1.0", "b" * 64), both) == both
    assert "a" * 64 not in maker.lock(report("some-package", "1.1", "c" * 64), both)
