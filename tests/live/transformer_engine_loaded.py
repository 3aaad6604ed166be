"""TransformerEngine, imported once for all ranks that are forked from a process with this module."""

from tests.live import transformer_engine_on_cpu

transformer_engine_on_cpu.load()
