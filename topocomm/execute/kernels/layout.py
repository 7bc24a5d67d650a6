"""How a lane is told to the compiled executor: one int64 array of a header and sections.

Sections follow each other in the order of the header's last seven words, each the index where one starts:

    SHAPES    per array of the value: id() of its dtype, number of axes, then their sizes
    PACK      per piece of the value: array, byte offset in it, address in shared memory, bytes
    OWN       per operand that is this rank's own value: array, byte offset in it, address in shared memory, and the
              index of the word that tells its fold where to read
    TARGETS   per fold that makes a piece of the result: array, byte offset in it, index of the word that tells it
              where to write
    UNPACK    per piece of the result that no fold of this rank makes: array, byte offset, address, bytes
    PROGRAM   per stage: own progress to publish, number of waits, then for each the byte offset of a counter and the
              progress awaited; number of folds, then for each the index of its task
    TASKS     tasks as `topocomm.operators.operator.Kernel` describes

Arrays are numbered: the value's fields in the operator's order, then those of the result.
"""

COUNTERS = 0
"""Address of the progress counters."""
FUNCTION = 1
"""Address of the operator's compiled fold."""
OWN_COUNTER = 2
"""Byte offset of this rank's counter."""
LOOKS = 3
"""Looks at a counter before the core is given away after every look."""
ARRAY_TYPE = 4
"""id() of numpy.ndarray."""
STREAMING = 5
"""Whether the value is written past the caches."""
UNTIL_TRIAL = 6
"""Calls until that is tried anew."""
SHAPES, PACK, OWN, TARGETS, UNPACK, PROGRAM, TASKS = range(7, 14)
HEADER_WORDS = 14

DONE = -1
"""Where a lane stands when it is through."""
MISFIT = -2
"""Where it stands when the value was to be checked and is not as the lane says; nothing was done."""

DIRECT = 1
"""Folds may read the caller's arrays: not where the result goes to the same memory."""
CHECKED = 2
"""The value's arrays are checked first: NumPy arrays of the lane's dtypes and shapes, C-contiguous."""
STRIDE = 1 << 16
"""Counter values of one call: epoch * STRIDE + stage + 1."""
