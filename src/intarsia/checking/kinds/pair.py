"""Every kind of difference that only two checkpoints can show, as `verify A B` names it.

Each is the second half of a sentence: "A and B differ as if ...".
"""

from __future__ import annotations

from intarsia.checking.kinds.kind import FaultKind

MOVED = "the conversion behind one of the two put elements in other places: convert it again from its source with `intarsia convert`, and fix the converter"
CHANGED = (
    "find the step that changed the numbers of one of the two, and convert it again from its source"
)
ALONE = "`intarsia verify` of each alone may show which of the two is wrong"
RANK = f"save again, or restore what that rank saved; {ALONE}"
STALE = f"restore that rank's file from the save that the others are of, or save again; {ALONE}"
LOST = f"restore the tensors of the side that lost them; {ALONE}"
MISSING = "take them from the side that has them: restore its files, or convert again from it"
NUMBERS = "compare the checkpoints that were quantised, or dequantise both with the library that quantised them, and compare that"
ROUNDED = "take the side that was not rounded where precision matters; rounded alike they are equal"
NARROWER = (
    "take the wider of the two where precision matters; rounded to the narrower type they are equal"
)

ROWS = "take the tensor from the side that has the model's shape: convert again from it, or save again with every rank's part"
PADDING = "look into the tokenizer: if no token has these rows, remove the padding or ignore it; if one has, take them from the side that is right"
RELABELLED = f"correct the element type in the header of the side that is wrong, or convert it again from its source; {ALONE}"

UNEXPLAINED = FaultKind(
    "unexplained",
    "A and B differ, and nothing known explains how",
    f"look at the files and bytes that differ; {ALONE}; where one of the two was trained further, use"
    " `intarsia diff A B`",
    between="none of the others; the diagnosis says [where](#where-it-differs) the differences lie",
)

_OF_TWO = (
    ("gate-up-swapped", "the two halves of SwiGLU lay in each other's place, as a whole or on every tensor-parallel rank", MOVED),
    ("gate-up-interleaved", "every tensor-parallel rank had fused its own gate and up, and one reader took them for whole ones; the size of `tp` is given", MOVED),
    ("qkv-interleaved", "every tensor-parallel rank had fused its own query, key and value, and one reader took them for whole ones; the size of `tp` is given", MOVED),
    ("components-interleaved", "every tensor-parallel rank had fused its own parts of a projection, and one reader took them for whole ones; the size of `tp` is given", MOVED),
    ("qkv-permuted", "query, key and value were fused by query group and read one after the other, or the reverse; or fused in another order, which is given", MOVED),
    ("heads-permuted", "heads came in another order", MOVED),
    ("rope-permuted", "rotary halves became pairs, or pairs halves", MOVED),
    ("transposed", "rows were columns", MOVED),
    ("reshaped", "the shape alone had changed", MOVED),
    ("shards-permuted", "blocks of an axis came in another order", MOVED),
    ("strided-shard", "FSDP over TP was stored in mesh order", MOVED),
    ("split-misplaced", "query, key and value, or gate and up, had been cut out of the fused tensor some rows too early or too late", MOVED),
    ("shifted", "a flat range, or the rows, began too early or too late", MOVED),
    ("rows-permuted", "rows or columns came in an order that has no name", MOVED),
    ("rank-stale", "one block of an even cut (or a flat range, a file, experts, layers), such as a rank holds, had other values: those of another step, or of another checkpoint whose file lies there; the ranks of a mesh are named only as the files have them", STALE),
    ("rank-zero", "one block such as a rank holds (or a flat range, a file, experts, layers) were zero", RANK),
    ("rank-duplicated", "one block such as a rank holds had another block's values", RANK),
    ("experts-permuted", "expert i held expert j", MOVED),
    ("experts-duplicated", "a rank's experts, or one expert, were in several places", RANK),
    ("layers-shifted", "layer i held layer j, and every layer from one on alike", MOVED),
    ("layers-permuted", "layer i held layer j", MOVED),
    ("layers-duplicated", "one layer was in several places", RANK),
    ("tensors-swapped", "a name held another name's values, and no more is known", MOVED),
    ("tensors-missing", "one side lacked tensors that the other holds", MISSING),
    ("quantised-differently", "the same weights were quantised in two ways, or on one side alone: their bits say nothing of each other", NUMBERS),
    ("rounded", "one side had passed through a narrower type, or a norm had been centred on another value and back", ROUNDED),
    ("dtype-changed", "the element type alone had changed", NARROWER),
    ("dtype-relabelled", "the same bits were called another element type, such as fp16 for bf16", RELABELLED),
    ("scaled", "numbers were multiplied: all alike, or by a factor for every row, column or block, as where the scales of a quantised matrix were left out; or inverted, as scales of another convention are", CHANGED),
    ("constant-added", "a constant had been added to every number, as to a norm that is centred on another value", CHANGED),
    ("signs-flipped", "numbers had changed their sign, or had lost it", CHANGED),
    ("zero", "numbers had been lost: one side is zero", LOST),
    ("zeros-moved", "zeros (rows that were lost or pruned) lay in other places: each side is zero where the other has numbers", LOST),
    ("nan", "numbers had been lost: one side is NaN", LOST),
    ("constant", "numbers had been initialised again on one side, such as norms of ones", LOST),
    ("steps-differ", "the optimizer of one side had counted other steps", "take both of one step of training; where one of the two was trained further, use `intarsia diff A B`"),
    ("bits-flipped", "single bits had flipped", LOST),
    ("damaged-pages", "whole 4 KiB pages, or 512-byte sectors, of a file had been lost or overwritten: a disk's damage, or an incomplete write", LOST),
    ("rows-missing", "one side lacked the first or the last rows of a tensor: a rank's shard that was taken for all of it, or padding that is on the other side", ROWS),
    ("padding", "only the last rows of a vocabulary differed, or one side alone had them: padding, if no token has these rows", PADDING),
)  # fmt: skip

PAIR = (*(FaultKind.of_two(*kind) for kind in _OF_TWO), UNEXPLAINED)
