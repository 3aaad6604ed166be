"""Every benchmark, one after the other, and the page that shows what they found.

Each script is a process of its own; one that fails is named at the end, and the others go on.

    python -m benchmarks.suite              what two quiet cores do in ten minutes
    python -m benchmarks.suite --device     a machine with many cores and a GPU; nothing is installed there
    … [--rounds 5] [--gigabytes 2] [--only scaling,peers] [--folder DIR] [--out DIR]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time

from benchmarks.measure import ROOT, python_path

QUICK = {
    "scaling": ("--gigabytes", "0.4", "--rounds", "2"),
    "formats": ("--gigabytes", "0.5", "--rounds", "2"),
    "peers": ("--gigabytes", "0.5", "--rounds", "2"),
    "growth": ("--gigabytes", "0.5", "--rounds", "2"),
    "ranks": ("--gigabytes", "0.3", "--rounds", "1"),
}
DEVICE = {
    "scaling": ("--gigabytes", "8", "--minutes", "5"),
    "device": ("--gigabytes", "8"),
    "peers": ("--gigabytes", "4", "--only", "load,dcp"),
    "growth": ("--gigabytes", "8", "--only", "bytes,tensors,plan"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", action="store_true")
    parser.add_argument("--only", default=None, help="the scripts to run")
    parser.add_argument("--rounds", default=None)
    parser.add_argument("--gigabytes", default=None)
    parser.add_argument("--folder", default=None, help="where to work")
    parser.add_argument("--out", default=None, help="where the results go; benchmarks/results")
    given = parser.parse_args()
    scripts = DEVICE if given.device else QUICK
    asked = given.only.split(",") if given.only else list(scripts)
    passed = [
        word
        for name in ("rounds", "gigabytes", "folder", "out")
        if (value := getattr(given, name)) is not None
        for word in (f"--{name}", value)
    ]
    env = {
        **os.environ, "PYTHONPATH": python_path(), "PYTHONWARNINGS": "ignore",
        "HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1", "TQDM_DISABLE": "1",
    }  # fmt: skip
    failed = []
    for name in asked:
        started = time.perf_counter()
        print(f"\n== {name}", flush=True)
        words = [sys.executable, "-m", f"benchmarks.{name}", *scripts.get(name, ()), *passed]
        if subprocess.run(words, cwd=ROOT, env=env).returncode:
            failed.append(name)
        print(f"== {name}: {time.perf_counter() - started:.0f} s", flush=True)
    if given.out is None:
        subprocess.run([sys.executable, "-m", "benchmarks.page"], cwd=ROOT, env=env, check=True)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
