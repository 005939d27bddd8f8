"""Has each process of the tests use one thread: several run side by side."""

import os

# Before torch is loaded, which reads it once; what a test starts takes it over.
os.environ.setdefault("OMP_NUM_THREADS", "1")
