"""Records that Python and compiled code share: fields of objects, plans, tiles, words of threads."""

from __future__ import annotations

from fastq.system.dtypes import record

# words of an object: its type (`PyObject.ob_type`); the value of a float (`PyFloatObject.ob_fval`) or of a NumPy scalar
# (`PyFloatScalarObject.obval` and others); the address of the elements of an ndarray (`PyArrayObject_fields.data`)
TYPE = object.__basicsize__ // 8 - 1
VALUE = object.__basicsize__ // 8
DATA = VALUE

LOCAL = 64  # words of `local`

# --- plans ------------------------------------------------------------------------------------------------------------

# the first operands of a plan in the order in which `run` takes them, which are checked; after them come as many as a
# plan needs, at most three; NONE is a null pointer
X, OUT, SCALE, ZERO = range(4)
NONE = 7
VALUES = X, OUT, SCALE, ZERO, NONE  # what most kernels get

# what a plan begins with: how many launches it has, what operands have to be (see `Checks`), and the addresses of types
# and None, which only this process knows
HEAD = record(
    "launches",
    ("nbytes", 4),
    *("scale_size", "scale_flags", "scale_type"),
    *("zero_size", "zero_is_float", "least_zero", "most_zero", "zero_type"),
    *("lowest_x", "lowest_out"),  # bytes from the first element to the lowest one
    *("array", "float", "double", "int", "nothing"),
)
LAUNCH = record(
    "kernel",
    ("operands", 5),
    *("origin", "start", "stop", "chunk", "threads", "wake_workers", "backward", "status_mask"),
    "args",  # address of the record that the kernel gets
)
NBYTES, OPERANDS = HEAD.fields["nbytes"][1] // 8, LAUNCH.fields["operands"][1] // 8  # type: ignore[index]
ARGS = LAUNCH.fields["args"][1] // 8  # type: ignore[index]
HEAD_WORDS = HEAD.itemsize // 8
HEAD_BYTES = HEAD.itemsize
LAUNCH_WORDS = LAUNCH.itemsize // 8
LAUNCH_BYTES = LAUNCH.itemsize

UNFIT = -1  # what the driver returns where a check failed; no kernel has run then

# --- tiles ------------------------------------------------------------------------------------------------------------

# Bytes of the stack, on each thread, of the buffers through which strided memory goes: a thread has 2**19 bytes on
# macOS (decision D41)
BUFFER = 1 << 16
TOGETHER = 8  # squares whose errors are added up together: about as many elements as in other memory

TILE = record(
    *("kernel", "args"),  # of the launch that is cut
    "unit",  # elements of a unit of the kernel
    *("fill_x", "fill_y", "empty_y"),  # functions that copy to the buffers of the operands, and back; 0: none
    *("bits_x", "bits_y"),  # of elements as the kernel has them
    *("unit_bits_x", "unit_bits_y"),  # of a unit of the kernel, in operands that are not copied
    "origin_unit",  # elements of the unit in which the kernel counts its origin
    "y_buffer",  # bytes before the second buffer
    "piece",  # elements of a piece
    *("across", "rows", "columns"),  # the axis of the rows of a square, its rows and its columns
    *("down", "along"),  # how many squares, at most, lie along that axis and along that of the columns
    "span",  # indices of the last axis but one that the columns of a square are of; 0: they are of the last axis alone
    "following",  # whether the rows of a square follow each other in C order
    *("pitch_x", "pitch_y"),  # bytes from row to row of a square in the buffers
    *("line_step_x", "line_step_y"),  # bytes from row to row of the operand with whose lines squares begin, 0: any row
    "sum_bytes",  # of the sums that the kernel adds to, of which each `TOGETHER` squares have some of their own; or 0
    *("ndim", "axes"),  # how many axes there are, and the address of their records:
)
AXIS = record("length", "x", "y", "elements")  # strides of the operands in bytes, and of the kernel in elements
AXIS_BYTES = AXIS.itemsize

# --- the words that threads share -------------------------------------------------------------------------------------

LINE_WORDS = 8  # int64 in a cache line: words that different threads write do not share one

GATE, OWNER, STATUS, JOB, PACE, SLOTS = (k * LINE_WORDS for k in (0, 1, 2, 3, 5, 6))  # a job takes two lines
JOB_KERNEL, JOB_POINTERS, JOB_ORIGIN, JOB_START, JOB_STOP, JOB_CHUNK = (JOB + k for k in (0, 1, 7, 8, 9, 10))
# the last one is the address of a function that reads a clock
JOB_BACKWARD, JOB_THREADS, JOB_ROUNDS, CLOCK = (JOB + k for k in (11, 12, 13, 14))
# when callers may have help again, for how long they went without it last time, when the last one was ready, and how
# many calls had help since one had to wait for it; how many callers want that nobody has help
BACKOFF_UNTIL, BACKOFF, LAST, HELPED, ALONE = (PACE + k for k in range(5))
SLOT = 2 * LINE_WORDS  # words of one slot, of which these are
TAKEN = 0
PARKED = LINE_WORDS
LOCK = LINE_WORDS + 1

# the gate from its lowest bit: how many are inside, flags, threads of the job, its sequence number
INSIDE = (1 << 16) - 1
CLOSED = 1 << 16
SLEEPING = 1 << 17
THREADS_BIT = 18
SEQUENCE_BIT = 34
MOST_THREADS = (1 << (SEQUENCE_BIT - THREADS_BIT)) - 1
