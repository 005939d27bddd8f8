"""Has the garbage collector leave out all that is there: each fork would copy what it looks at."""

import gc

gc.freeze()
