"""Without the kernel the answers are the same: bytes that are written, digests, verdicts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import intarsia
from tests.fixtures import fixture
from tests.written_bytes import recorded, written

WRITTEN = [("hf/qwen3_moe_sharded", "dcp tp=2,fsdp=3")]
CHECKED = ["hf/qwen3_next", "megatron/td_gdn_tp2"]


def answers() -> dict[str, object]:
    """What is written, summed and found, of checkpoints of several formats."""
    bytes_of = {f"{s} to {t}": written(s, t) for s, t in WRITTEN}
    paths = [fixture(*name.split("/")) for name in CHECKED]
    digests = [intarsia.digest(path).root for path in paths]
    alone = [intarsia.verify(path).as_json() for path in paths]
    return {
        "bytes": bytes_of,
        "digests": digests,
        "alone": alone,
        "pair": intarsia.verify(paths[0], paths[0]).as_json(),
    }


def test_without_the_kernel_the_answers_are_the_same() -> None:
    root = Path(__file__).resolve().parents[2]
    environ = {**os.environ, "INTARSIA_KERNEL": "off", "PYTHONPATH": f"{root / 'src'}:{root}"}
    asked = [sys.executable, "-m", "tests.kernel.test_same_answers"]
    found = subprocess.run(asked, cwd=root, env=environ, capture_output=True, text=True, check=True)
    here = answers()
    assert here["bytes"] == {f"{s} to {t}": recorded()[s][t] for s, t in WRITTEN}
    assert json.loads(found.stdout) == json.loads(json.dumps(here, default=str))


if __name__ == "__main__":
    print(json.dumps(answers(), default=str))
