"""Settings of all tests."""

from hypothesis import settings

# A first call may import torch's parts for seconds, so an example's time says nothing.
settings.register_profile("saywhere", deadline=None, max_examples=60)
settings.load_profile("saywhere")
