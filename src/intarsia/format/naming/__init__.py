"""From names on disk to logical names: sections, wrappers, dialects."""
