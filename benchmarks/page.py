"""The tables and figures of `docs/performance.md`, from the results.

python -m benchmarks.page            writes them
python -m benchmarks.page --check    says whether they are what the results say
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.chart import chart
from benchmarks.measure import RESULTS, ROOT

PAGE = ROOT / "docs" / "performance.md"
FIGURES = ROOT / "docs" / "figures"
BEGIN = "<!-- from here on written by python -m benchmarks.page -->"
END = "<!-- as far as here -->"
Found = Mapping[str, Any]
Cell = Callable[[Found], str]


@dataclass(frozen=True)
class View:
    """How the rows of a claim are shown: what labels a line, what a column, and what stands in a cell."""

    title: str
    lines: tuple[str, ...]
    column: str
    cell: Cell
    unit: str
    """What a cell says."""
    x: str = ""
    """The name of the x axis of the figure; none without."""
    y: str = ""
    value: Callable[[Found], float | None] = lambda row: row.get("gb_per_s")


def rate(row: Found) -> str:
    """Gigabytes in a second, and the ratio to the first that it stands beside."""
    return f"{row['gb_per_s']:.2g}{_ratio(row)}"


def seconds(row: Found) -> str:
    return f"{row['median_s']:.2g} s"


def of_copy(row: Found) -> str:
    """The ratio to a copy, the time of one core and the memory."""
    return f"{_first(row):.2f} x, CPU {row['cpu_s']:.1f} s, {row['peak_mib']} MiB"


def _first(row: Found) -> float:
    return float(next(iter(row["beside"].values())))


def _ratio(row: Found) -> str:
    said = []
    for key, word in (("beside", ""), ("beside_cpu", "CPU ")):
        name, ratio = next(iter(row.get(key, {}).items()), (row["job"], 1.0))
        said += [f"{word}{ratio:.2f} x"] if name != row["job"] else []
    return f" ({', '.join(said)})" if said else ""


def per_tensor(row: Found) -> str:
    return f"{row['cpu_s'] / row['at']['tensors'] * 1e6:,.0f}"


def reads(row: Found) -> str:
    return f"{row['read_ratio']:.2f} x"


def on_ranks(row: Found) -> str:
    return f"{row['median_s']:.2g} s ({_first(row):.2f} x), read {row['read_ratio']:.2f} x, {max(0, row['peak_mib'])} MiB"


_RATE = "GB/s; in brackets the time, and the seconds of CPU where they are known, as ratios to "
VIEWS: dict[str, View] = {
    "scaling-digest": View("Digests against workers", ("model", "job"), "workers", rate, _RATE + "read + CRC + sum", "workers", "GB/s"),
    "scaling-verify": View("Checking one checkpoint against workers", ("model", "job"), "workers", rate, _RATE + "read + CRC + sum", "workers", "GB/s"),
    "scaling-pair": View("Comparing two checkpoints against workers", ("model", "job"), "workers", rate, _RATE + "two reads + compare", "workers", "GB/s"),
    "scaling-convert": View("Converting against workers", ("model", "job"), "workers", rate, _RATE + "the copy", "workers", "GB/s"),
    "scaling-command": View("The command line from start to end", ("model",), "job", seconds, "seconds"),
    "scaling-torchrun": View("Several processes", ("model",), "job", seconds, "seconds"),
    "formats-pairs": View("Every format to every format", ("from",), "to", of_copy, "time as a ratio to `cp -r` of the source that ends with a sync, seconds of CPU, and peak memory"),
    "formats-within": View("Every format to every format, in one process", ("from",), "to", of_copy, "time as a ratio to `cp -r` of the source that ends with a sync, seconds of CPU, and peak memory"),
    "formats-experts": View("A mixture of experts to Megatron and back", ("from",), "job", of_copy, "time as a ratio to `cp -r` of the source that ends with a sync, seconds of CPU, and peak memory"),
    "formats-optimizer": View("Weights with optimizer state", ("from",), "job", of_copy, "time as a ratio to `cp -r` of the source that ends with a sync, seconds of CPU, and peak memory"),
    "formats-digests": View("Digests beside reading", ("format",), "job", rate, _RATE + "reading each tensor"),
    "growth-bytes": View("Cost against bytes", ("job",), "gigabytes", seconds, "seconds", "GB of weights", "seconds", lambda row: row["median_s"]),
    "growth-tensors": View("Cost against tensors", ("job",), "tensors", per_tensor, "µs of one core for each tensor, its bytes included", "tensors that hold 200 MB", "seconds of CPU", lambda row: row["cpu_s"]),
    "growth-plan": View("Cost against tensors and ranks: planning", ("tensors", "job"), "ranks", lambda row: f"{row['cpu_s']:.2g} s", "seconds of one core", "ranks", "seconds of CPU", lambda row: row["cpu_s"]),
    "growth-reads": View("Cost against ranks: bytes that one rank reads", ("cut", "job"), "ranks", reads, "bytes read as a ratio to those that the rank needs", "ranks", "x the bytes needed", lambda row: row["read_ratio"]),
    "peers-load": View("Loading safetensors in one process", ("job",), "model", rate, _RATE + "`cat`"),
    "peers-dcp": View("Loading a checkpoint of torch in one process", ("job",), "model", rate, _RATE + "`cat`"),
    "peers-save": View("Saving from one process", ("job",), "model", rate, _RATE + "a synced `cp -r`"),
    "peers-merge": View("Merging shards into safetensors", ("job",), "model", rate, _RATE + "a synced `cp -r`"),
    "ranks-load": View("Loading on ranks", ("job",), "model, ranks, cache", on_ranks, "seconds, time as a ratio to ours, bytes that all ranks read as a ratio to the checkpoint, memory beside the shards"),
    "ranks-background": View("Pause of a save in the background", ("job",), "of", lambda row: f"{row['median_s'] * 1e3:.0f} ms ({_first(row):.2f} x)", "milliseconds, and the ratio to a plain copy"),
    "device-load": View("File to GPU", ("job",), "workers", rate, _RATE + "reads into pinned memory with the copy to the device, or to that copy alone", "workers", "GB/s"),
    "device-scatter": View("File to GPU, in another order", ("job",), "memory", rate, _RATE + "the copy on the device"),
    "device-ranks": View("Processes that share a GPU", ("job",), "processes", rate, "GB/s"),
    "device-save": View("GPU to disk", ("job",), "to", rate, _RATE + "a synced `cp -r`"),
    "device-background": View("Pause of a save from the GPU", ("job",), "tensors of", lambda row: f"{row['median_s'] * 1e3:.2g} ms ({_first(row):.2f} x)", "milliseconds, and the ratio to a pinned copy"),
}  # fmt: skip


def label(row: Found, key: str) -> str:
    """What a row is called in a line or a column."""
    if key == "job":
        return str(row["job"])
    if key == "to" and " -> " in row["job"]:
        return str(row["job"].split(" -> ")[1])
    return ", ".join(str(row["at"].get(part, "")) for part in key.split(", "))


def shown(view: View, rows: list[Found]) -> list[Found]:
    """The rows that a table has: where each stands beside a copy, not the copies."""
    return [row for row in rows if view.cell is not of_copy or not row["job"].startswith("cp")]


def table(view: View, rows: list[Found]) -> Iterator[str]:
    """A table in Markdown; a job that could not run says why."""
    rows = shown(view, rows)
    columns = list(dict.fromkeys(label(row, view.column) for row in rows))
    lines: dict[tuple[str, ...], dict[str, str]] = {}
    for row in rows:
        cells = lines.setdefault(tuple(label(row, key) for key in view.lines), {})
        cells[label(row, view.column)] = row["failed"] if "failed" in row else view.cell(row)
    heads = [" / ".join(view.lines), *columns]
    yield "| " + " | ".join(heads) + " |"
    yield "|" + "---|" * len(heads)
    for names, cells in lines.items():
        yield "| " + " | ".join([" / ".join(names), *(cells.get(c, "") for c in columns)]) + " |"


def figure(view: View, rows: list[Found]) -> str | None:
    """The chart of a claim; None where there are no two points to join."""
    lines: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        at = row["at"].get(view.column)
        if "failed" in row or not isinstance(at, (int, float)):
            continue
        value = view.value(row)
        if value is not None:
            name = " ".join(label(row, key) for key in view.lines)
            lines.setdefault(name, []).append((at, value))
    lines = {name: points for name, points in lines.items() if len(points) > 1}
    return chart(view.title, view.x, view.y, lines) if lines and view.x else None


def section(kind: str, held: Found) -> Iterator[tuple[str, str | None, str]]:
    """The text of a machine's results, and each figure with its name."""
    machine, versions = held["machine"], held["versions"]
    what = [
        f"{machine['cores']} cores of {machine['architecture']}",
        f"{machine['memory_gib']} GiB",
    ]
    what += [machine["gpu"]] if machine["gpu"] else []
    installed = [f"{n} {v}" for n, v in versions.items() if not v.startswith("not")]
    absent = [n for n, v in versions.items() if v.startswith("not")]
    text = [f"## {', '.join(what)}", ""]
    text.append(f"Linux {machine['kernel']}, Python {machine['python']}, {', '.join(installed)}.")
    if absent:
        text.append(f"Not installed there: {', '.join(absent)}.")
    yield "\n".join(text) + "\n", None, ""
    for claim, view in VIEWS.items():
        if claim not in held["claims"]:
            continue
        found = held["claims"][claim]
        rows = found["rows"]
        text = ["", f"### {view.title}", "", _sentence(found["about"], rows), ""]
        if found.get("load", 0) > machine["cores"] + 1:
            text[3] += (
                f" Other work ran on the machine meanwhile (load {found['load']:.0f} on"
                f" {machine['cores']} cores), so times are long and their ratios rough."
            )
        drawn = figure(view, rows)
        name = f"{claim}-{kind}.svg"
        if drawn is not None:
            text += [f"![{view.title}](figures/{name})", ""]
        text += [f"Each cell: {view.unit}.", "", *table(view, rows)]
        yield "\n".join(text) + "\n", drawn, name


def _sentence(about: str, rows: list[Found]) -> str:
    """What was measured, with the bytes and the rounds."""
    sizes = sorted({row["bytes"] for row in rows if "bytes" in row})
    rounds = sorted({row["rounds"] for row in rows if "rounds" in row})
    spread = sorted(row["spread"] for row in rows if row.get("rounds", 0) > 1)
    said = about[:1].upper() + about[1:]
    if sizes:
        said += f"; {_span([x / 1e9 for x in sizes])} GB"
    if rounds:
        said += f"; medians of {_span(rounds)} rounds" if rounds[-1] > 1 else "; one run of each"
    if spread:
        said += f", of which slowest and fastest lie {spread[len(spread) // 2]:.0%} apart"
    return said + "."


def _span(values: list[Any]) -> str:
    low, high = f"{values[0]:.2g}", f"{values[-1]:.2g}"
    return low if low == high else f"{low} to {high}"


def written() -> dict[Path, str]:
    """Every file that the results make, with its content."""
    made: dict[Path, str] = {}
    parts = []
    for path in sorted(RESULTS.glob("*.json")):
        for text, drawn, name in section(path.stem, json.loads(path.read_text())):
            parts.append(text)
            if drawn is not None:
                made[FIGURES / name] = drawn
    before, rest = PAGE.read_text().split(BEGIN)
    made[PAGE] = f"{before}{BEGIN}\n\n{''.join(parts)}\n{END}{rest.split(END)[1]}"
    return made


def stale() -> list[str]:
    """Files that are not what the results say, and figures that no results have."""
    made = written()
    found = [
        str(p.relative_to(ROOT))
        for p, text in made.items()
        if not p.exists() or p.read_text() != text
    ]
    extra = [str(p.relative_to(ROOT)) for p in FIGURES.glob("*.svg") if p not in made]
    return found + extra  # fmt: skip


def main() -> None:
    if "--check" in sys.argv[1:]:
        sys.exit("\n".join(["run python -m benchmarks.page:", *found]) if (found := stale()) else 0)
    FIGURES.mkdir(exist_ok=True)
    made = written()
    for path, text in made.items():
        path.write_text(text)
    for path in FIGURES.glob("*.svg"):
        if path not in made:
            path.unlink()


if __name__ == "__main__":
    main()
