"""Property tests: the same examples every time in `make test`, new ones in `make test-all`."""

from hypothesis import settings

settings.register_profile("same", derandomize=True, deadline=None, print_blob=True)
settings.register_profile("new", deadline=None, print_blob=True)
settings.load_profile("same")
