"""Values at which programs break: extreme numbers, odd names, words of every format."""

from __future__ import annotations

NUMBERS = (
    0, 1, -1, 2, 3, 7, 8, 64, 127, 128, 255, 256, 65535, 65536, 1 << 20, 1 << 31, (1 << 32) - 1,
    1 << 40, 1 << 60, (1 << 62) - 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, 1 << 200, -(1 << 31),
    -(1 << 63), 10**12, 400_001,
)  # fmt: skip

WORDS = (
    b"-1", b"1e400", b"NaN", b"null", b"true", b"[]", b"{}", b'""', b"9" * 5000, b'"\\ud800"', b"\x00",
    b"../x", b"[" * 70 + b"]" * 70, b"\x85", b"\x86", b"h\x00", b"R", b"b", b"(", b"t", b"u", b"2", b"0",
    b"cos\nsystem\n", b"ctorch\nSize\n", b"PK\x03\x04", b"PK\x01\x02", b"PK\x05\x06", b"PK\x06\x06",
    b"1000000000", b"4294967296", b'"x"', b"\xff\xff\xff\x7f", b"tp=", b",", b"GiB", b"\xe2\x80\xae",
)  # fmt: skip

TEXTS = (
    "", ".", "..", "../x", "/etc/passwd", "a\0b", "\ud800", "\x1b[2J", "a" * 2000, "\u202etxt", "x\n",
    "F32", "BF16", "F4", "float32", "model.safetensors", "__0_0.distcp", ".metadata", "__metadata__",
    "model.norm.weight", "decoder.layers.0.mlp.linear_fc1.weight", "optimizer.step.x", "0", "-1",
    "decoder.layers.mlp.experts.experts.linear_fc1.weight", "optimizer.state.exp_avg.x", "a.b.c",
    "decoder.layers.999999999.mlp.linear_fc2.weight", "common_state/shard_0_1", "llama", "gpt2", "qwen3_next",
    "optimizer.distributed.dp_group_idx_0.gbuf_idx_0.dtype_(torch.float32, x).bucket_idx_0.param",
)  # fmt: skip
