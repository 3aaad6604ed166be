"""Where boxes go in data files: to the rank with the least to write, with elements aligned."""

from __future__ import annotations

from random import Random

from intarsia.dtypes import BY_NAME
from intarsia.format.dcp.write import Files, alignment_bytes, file_of, place_all
from intarsia.format.torch_file.torch_frame import frame
from intarsia.mesh import Box

TYPES = [BY_NAME["BF16"], BY_NAME["F32"]]


def test_each_box_goes_behind_the_others_of_the_rank_with_the_least_to_write() -> None:
    random, ranks = Random(0), 5
    rows = {k: Box((k, 0), (1, 40_000 if k % 2 else 7)) for k in range(4)}
    shared = {box: random.sample(range(ranks), random.randint(1, 3)) for box in rows.values()}
    held = [
        (
            f"t{k}",
            random.choice(TYPES),
            (4, 40_000),
            random.choice([shared, {rows[k % 4]: [k % 5]}]),
        )
        for k in range(60)
    ]
    files = Files(ranks, "folder/")
    slots, tensors = place_all(files, held)
    ends = [0] * ranks
    for name, dtype, shape, boxes in held:
        assert (tensors[name].name, tensors[name].dtype, tensors[name].shape) == (
            name,
            dtype,
            shape,
        )
        each = zip(boxes.items(), slots[name], tensors[name].chunks, strict=True)
        for (box, holding), slot, chunk in each:
            wrap = frame(dtype, box.shape)
            rank = min(holding, key=lambda r: (ends[r], r))
            gap = -(ends[rank] + wrap.start_bytes) % alignment_bytes(wrap)
            at = ends[rank] + gap
            ends[rank] = at + wrap.length_bytes
            assert (slot.box, slot.file) == (box, "folder/" + file_of(rank))
            assert (slot.start_bytes, slot.gap_bytes) == (at + wrap.start_bytes, gap)
            assert slot.wrapping is wrap
            assert (chunk.box, chunk.file) == (box, file_of(rank))
            assert (chunk.start_bytes, chunk.length_bytes) == (at, wrap.length_bytes)
    assert files.sizes == {"folder/" + file_of(rank): end for rank, end in enumerate(ends)}
