from array import array
from collections.abc import Callable, Sized
from typing import Any

from numpy.typing import NDArray

THROUGH: int
WAITING: int
TO_FOLD: int
TO_EXCHANGE: int
STRIDE: int
FINISHED: int
MOST_FIELDS: int
CALLS_A_TRIAL: int
CALLS_A_CHOICE: int
DONE: int
IMPRECISE: int
MISMATCH: int
UNDER_WAY: int
SWEEP_DUE: int

class Results:
    """Memory of results, arrays of bytes (dtype `bytes`): what they give back serves again, up to `most` bytes."""

    kept: list[NDArray[Any]]
    def __new__(cls, bytes: Any, most: int) -> Results: ...
    def lend(self, like: NDArray[Any], /) -> NDArray[Any]:
        """Return an array of the shape and dtype of another one, without contents, C-contiguous."""

    def close(self) -> None:
        """Keep nothing from now on."""

def fold_address(operator: str, dtypes: str, /) -> int:
    """Return the address of the fold of an operator for these dtypes, as "f4,i8"; 0 where it has none."""

def describe(array: NDArray[Any], /) -> tuple[int, bool, tuple[int, ...], Any, int]:
    """Return (address, whether it is of no subclass, shape, dtype, flags) as C sees an array."""

def read_process(process: int, address: int, into: NDArray[Any], /) -> int:
    """Copy from an address in a process as many bytes as `into` has; return 0, or why that fails, as an errno."""

def follow_turns(*columns: NDArray[Any] | int) -> None:
    """Set when messages start and arrive and values are ready, of a schedule whose ports serve messages in turn.

    The columns are those of `planning.cost.port_turns.TurnColumns`, in its order; the last is the places of a port.
    """

def busiest_by_round(*columns: NDArray[Any]) -> None:
    """Raise the last column, float64 [rounds], to the time of the place in each round that messages hold longest.

    The columns are those of `planning.cost.port_turns.busiest_by_round`, then zeros, float64 [places].
    """

def load_places(*columns: NDArray[Any]) -> None:
    """Add what messages hold to the places, and keep the least latency; as `planning.cost.port_turns.load_places`."""

def run_events(*columns: NDArray[Any] | float) -> int:
    """Set the times of tasks and what each awaited last; return the number of events.

    The columns are, of n tasks: those that come after each one (int64 [n + 1] where they begin, and their numbers),
    the links of all routes likewise, the route of each task (int32); of ports of endpoints, then of NICs, those that
    each task holds, likewise, the queues of all ports one after the other (int64) and where each ends; float64 [n]:
    time before the first byte, latency, hold and gap in us; the most bytes per us, or []; float64 [links]: bytes
    per us. These are written: int64 [ports]: the next place in the queues, of both kinds of ports; int32 [n]: what
    each still awaits; float64 [n]: bytes left, start, first byte, last byte, arrival, infinite at first; int32 [n]:
    the task awaited last. Then come the arguments `most_us` and `exact_instants` of `planning.cost.events.simulate`.
    """

def group_messages(*arrays: NDArray[Any]) -> int:
    """Number the messages of a schedule by their first transfers; return how many there are.

    The arrays are its transfers (int32 [n, 7]) and the bytes of each chunk (int64); these are written, int64 [n]: the
    message of each transfer, and of the messages the first transfer and the bytes.
    """

def exchange_nodes(*arguments: NDArray[Any] | int) -> tuple[bytes, bytes, bytes, bytes] | None:
    """Send the messages of a gossip and fold the whole value on every rank, as `NodeExchange.run_everywhere`.

    The arguments are, int32: the columns of the tree [5, nodes], rank, node and slot of what ranks hold [n, 3], round,
    source and destination of the messages [n, 3]; two arrays [ranks] that are written, the next slot of each rank, and
    the slots of the results; then the chunk. The result is int32: moves, folds, operands and widths of a
    `ScheduleBuilder`; None where a rank lacks a value.
    """

def list_messages(*arguments: NDArray[Any] | float | bool) -> None:
    """Start messages one after the other, the soonest first, of these that of most left to do.

    The arguments are, [messages, width]: the rows that each message needs (int64), the last of all where it needs
    fewer, for how long, and what part that is of the most that a row has to do; weights of messages. These are written:
    zeros, float64 [rows]; what each row has to do, float64 [rows]; the starts, float64 [messages]. Then come the time
    by which starts are the same, and whether what is left to do counts cubed and added up, not the most of it.
    """

def pack_turns(*arguments: NDArray[Any] | int) -> bool:
    """Give messages turns in a period, so that none needs a row that another has; return whether all have one.

    The arguments are, int64: where the rows of each message begin (int64 [n + 1]), these rows, and how many turns in a
    row each message takes; two arrays that are written, the messages, of which the last is placed first, and -1 for
    each of them, its turn afterwards; then the turns of the period, and how many messages may be placed, some of them
    again, before it is given up.
    """

def number_places(*arrays: NDArray[Any]) -> int:
    """Number the places of a schedule; return whether something reads one that nothing writes.

    It is -1, and nothing is numbered, where places have so large numbers that no word holds them. The first six
    arrays are transfers, combines and operands of the schedule, the combine of each operand (int64), `input_table` and
    outputs; the others are written, int64: the columns of `planning.schedule.place_numbers.PlaceNumbers`
    but `count` and `fold_of`, rank and chunk of all that is written.
    """

def most_alive(*arrays: NDArray[Any]) -> None:
    """Set the last array, int64 [ranks], to the most pieces of each rank that are alive at once.

    The others are the first transfer, and combine, of every round and the number; transfers, combines and operand
    starts of the schedule, of a pipeline of its rounds; sent, received, folded, operands, inputs and outputs of
    `PlaceNumbers`; rank and chunk of its places; uint8 [chunks * slices]: whether the pieces of each slice of a chunk
    count; int64 [2]: how many slices there are, and by how many rounds each is later than the one before; and two
    empty ones, or, without slices, the message of each transfer and the bytes of a piece of each chunk: then the last
    array is set to the bytes of each rank's arena.
    """

def cheapest_parents(costs: NDArray[Any], parents: NDArray[Any], root: int, /) -> bool:
    """Set the parents, int64 [n], as `planning.forests.linear_program.arborescence.cheapest_arborescence` returns them.

    `costs` is float64 [n, n]. Returns whether the root reaches all nodes.
    """

def least_sums(*arrays: NDArray[Any]) -> None:
    """Set the last array, float64 [sources, devices], to the least sums of weights of links from the starts.

    The others are: tails and heads of the links, int64; uint8 [links]: whether a link takes on what has come to its
    tail; their weights, float64; uint8 [1]: whether all do, and what is at a start has come there; and the starts,
    float64 [sources, devices].
    """

def leave_in_turn(*arrays: NDArray[Any]) -> None:
    """Let messages leave as `planning.scan_trees.hop_clock` says, and set their slices and when they are there.

    The arrays are: the messages, int64; when each is ready, float64; of all messages the last hop, int64, and the
    turns and how long each hop takes, float64 [messages, hops]; the period, and the part of it below which times are
    one; then those that are written, int64 [messages, hops] and float64 [messages].
    """

def pack_intervals(*arrays: NDArray[Any]) -> None:
    """Find the cheapest trees of all intervals of ranks, as `planning.scan_trees.tree_packing` has them.

    The arrays are the prices from rank to rank, float64 [ranks, ranks], and bool [1]: whether there are several hosts;
    those that are written, [ranks + 1, ranks + 1, ranks], are the prices of one tree, infinite at first, its root, the
    prices of several trees, 0 at first, and where the last of them begins.
    """

def price_steps(*arrays: NDArray[Any]) -> None:
    """Set the prices, float64 [ranks, ranks], of steps from rank to rank and what is between, and where that is cut.

    The first arrays are the prices of several trees that `pack_intervals` has set, and those from rank to rank.
    """

def order_slices(*arrays: NDArray[Any]) -> None:
    """Set row and slice of each entry of a table in all slices, as `planning.schedule.schedule.slice_order`.

    The arrays are the table, int32, sorted by its first column; int64 [2]: how many slices there are, and by how much
    each is later; and those that are written, int64: one [slices] for its own use, the rows and the slices.
    """

def trace_values(*arrays: NDArray[Any]) -> bool:
    """Find the value that every operand and output of a schedule reads; return whether it has no fault.

    The arrays are the first transfer, and combine, of every round and the number; the operand starts; inputs, sent,
    received, folded, operands and outputs of `PlaceNumbers`, and how many places there are, [1]; these are written,
    int64, and fit only without a fault: `operands` and `outputs` of `planning.proof.dataflow.Dataflow`.
    """

def fold_trees(*arrays: NDArray[Any]) -> int:
    """Fold the values of a schedule to trees; return how many there are, -1 where two operands share a contribution.

    The arrays are the leaf that each input holds, the operands, by value, and their starts; these are written: the tree
    of every value, int64, and of each tree the first contribution and the end, its two parts, and its flags, as
    `planning.proof.expressions.Trees` has them. Those of the leaves are there at first, other flags are 0.
    """

def table_text(table: NDArray[Any], /) -> str:
    """Return the rows of an int32 table as JSON without spaces, a list of lists."""

def rounds_text(*arrays: NDArray[Any]) -> str:
    """Return the rounds of a schedule as JSON without spaces, as `planning.formats.schedule_json` writes them.

    The arrays are where the transfers of each round begin (int64 [rounds + 1]), the transfers, where its combines
    begin, the combines, operands and operand starts.
    """

def bind_call(
    engines: tuple[Engine, Engine],
    names: tuple[str, ...],
    bare: bool,
    gives: bool,
    nothing: object,
    tag: int,
    record: array[int],
    sweep_mask: int,
) -> Callable[[Any, Any, memoryview | None], Any]:
    """Return the call of a value, None where there is none, and of where its result goes, or None, for two engines.

    With the memory of flags (row_flags.py) it says that this rank's rows have not changed, and hears of others'.

    It gives `out`, or what is new where that is None, or `nothing` on ranks without a result. Where something does not
    fit, None, and nothing is done; where the call is not through, it is time for a sweep, or flags are missing or tell
    of changes, a tuple of its state and the result.
    """

def bind_view(
    type: type,
    exchange: object,
    strided: object,
    is_negative: Callable[[Any], object],
    dtypes: tuple[tuple[int, int, Any], ...],
    /,
) -> Callable[[Any, bool], NDArray[Any] | None]:
    """Return what gives an array on the memory of a tensor: of its shape, or on True of one axis.

    None where it is of another type, requires gradients, is empty, not in host memory or in one piece, has a sign that
    is not applied yet, or numbers that are not among `dtypes`.

    Args:
        type: Of the tensors.
        exchange: Its `__dlpack_c_exchange_api__`.
        strided: The `layout` of tensors whose items have places in memory.
        is_negative: Whether a tensor has a sign that is not applied yet.
        dtypes: What numbers are called, by their code and bits in DLPack.

    Raises:
        ImportError: It is of another version of DLPack.
    """

def bind_group_sum(
    options: type,
    unset: object,
    kind: object,
    view: Callable[[Any, bool], Any],
    left: Sized,
    acquire: Callable[[bool], object],
    release: Callable[[], object],
    run: Callable[[Any, Any, Any], object],
    operator: object,
    /,
) -> Callable[[Any, Any], bool]:
    """Return what makes torch's all_reduce of tensors and options, and says whether it did.

    It did nothing where it is no sum of one plain tensor that the program waits for, or another call comes first.

    Args:
        options: Their type.
        unset: Their `timeout` where none is given.
        kind: Their `reduceOp` of a sum.
        view: The tensor's items as an array; None where it is not plain.
        left: Calls that come first.
        acquire: Takes the turn, given False: at once or not.
        release: Gives the turn back.
        run: Makes the call with the operator, a value and where the result goes.
        operator: See run.
    """

def bind_sum(
    *,
    x: object,
    out: object,
    names: tuple[str, ...],
    arrays: tuple[object, ...],
    leading: tuple[int, ...],
    sends: tuple[Callable[[Any], object], ...],
    parts: tuple[slice | None, ...],
    receive: Callable[[Any], object],
    error: Callable[[int], BaseException],
    hash: Callable[[Any], int],
    own: slice | None,
    sent: tuple[object, ...],
    received: object,
    ours: object,
    theirs: object,
    sums: object,
    requests: Requests,
    ranks: int,
    tag: int,
    record: array[int],
    sweep_mask: int,
) -> tuple[Callable[[Any, Any, Any], int | None], Callable[[Any], int]]:
    """Return the steps of a reduction by MPI's SUM, for a value and a result that stay.

    Args:
        x: The value: an array, or a dict of arrays.
        out: The result, likewise.
        names: Of the fields.
        arrays: Of x, then of out, by name.
        leading: The shape of a reference.
        sends: For each block what writes the share relative to its part of a reference; whether it alone is precise.
        parts: Parts of a reference by block, None: the whole.
        receive: Reads the sums; whether they were precise.
        error: Makes an exception of the code that a function of MPI returned.
        hash: Of a reference, 32 bits.
        own: The part of a reference for `receive`.
        sent: The tail of each block, written: a digest of the reference, 16 float32 or float64; in a reduce-scatter one
            more, whether a share is not precise.
        received: That of the sums.
        ours: What this rank adds to `theirs`, which requests receive, where they are no sum; else all three are empty.
        theirs: See ours.
        sums: Where they are added.
        requests: What moves or sums it; tested so often before the caller waits.
        ranks: How many add up.
        tag: Of the call, for the record.
        record: The recorder's.
        sweep_mask: Calls between two sweeps, less one.

    Returns:
        run(x, reference, out): DONE, IMPRECISE: nothing was written; MISMATCH: ranks have other references; UNDER_WAY:
            the caller waits for the sum, then takes finish; with SWEEP_DUE added where it is time for a sweep. None,
            and nothing is done, where these are not the value and the result, or the reference does not fit.
        finish(reference): DONE, IMPRECISE or MISMATCH, when the sum is there.
    """

class Requests:
    """Persistent requests of MPI, which an engine starts and tests.

    Args:
        start_all: Address of MPI_Startall.
        test_all: Address of MPI_Testall.
        handles: Of the requests, one after the other; MPI may write to them.
        statuses: Memory for as many statuses.
        count: How many.
        tests: Tests before the core is given away.

    Attributes:
        code: What a function returned last: 0, or an error of MPI's.
        count: How many.
    """

    code: int
    count: int
    def __new__(
        cls, start_all: int, test_all: int, handles: bytearray, statuses: bytearray, count: int, tests: int
    ) -> Requests: ...

class Engine:
    """One rank's part of a plan in shared memory, as engine.h describes it.

    Attributes:
        credited: Calls that have taken their credits.
        unread: Why it cannot pull from the rank that it waits for, as an errno; 0 if that is not why it waits.
        streaming: Whether it writes past the caches.
        until_choice: Calls until that is chosen anew.
        quickest_plain: Cycles of the quickest call on trial; `quickest_streamed`: the same past the caches.
    """

    credited: int
    unread: int
    streaming: int
    until_choice: int
    quickest_plain: int
    quickest_streamed: int
    def __new__(
        cls,
        words: NDArray[Any],
        value: tuple[tuple[NDArray[Any], int], ...],
        result: tuple[tuple[NDArray[Any], int], ...],
        memory: NDArray[Any],
        counters: NDArray[Any],
        epoch: array[int],
        position: int,
        looks: int,
        final: int,
        fold: int,
        calls_before_trial: int,
        requests: tuple[Requests | None, ...] = ...,
        credits: tuple[Requests | None, ...] = ...,
    ) -> Engine: ...
    @property
    def state(self) -> int:
        """THROUGH, WAITING, TO_FOLD: the folds of the stage are to be run outside, or TO_EXCHANGE.

        Then the messages of the stage are not through; those without requests are to be sent and received outside.
        """
    @property
    def stage(self) -> int:
        """Number of the stage in which it stands; -1 before the first."""
    @property
    def results(self) -> tuple[NDArray[Any], ...]:
        """The arrays of the result, while a call is under way."""
    def begin(self, value: tuple[NDArray[Any], ...], result: tuple[NDArray[Any], ...], direct: bool, /) -> int:
        """Begin a call, counted, on one array a field, or none; return its state.

        `direct` says whether folds may read the value's arrays: not where the result goes to the same memory.

        Raises:
            TopocommError: The arrays do not fit, or a call is running.
        """
    def start(self) -> None:
        """Start at the beginning; of programs without arrays."""
    def go_on(self, sleep_us: int = 0, /) -> int:
        """Go on with what was begun; return its state. It may sleep this long at a time while it waits."""
    def withdraw(self) -> None:
        """Let no rank pull from the value any more, after a call that failed."""
    def behind(self) -> list[int]:
        """Return the positions of the ranks that it waits for now."""
