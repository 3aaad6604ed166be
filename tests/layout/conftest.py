"""Random examples are judged by what they find, not by how long a busy machine takes for one."""

from hypothesis import settings

settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")
