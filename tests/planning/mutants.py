"""Every schedule that differs from a given one in one thing: what is deleted, doubled, swapped or aimed elsewhere."""

import random
from dataclasses import replace
from itertools import combinations, islice

from topocomm.planning.schedule.schedule import Combine, Repeat, Schedule, Transfer, make_schedule

TABLES = ("transfers", "combines", "inputs", "outputs", "chunks", "owners", "nodes", "paths")


def mutants(schedule, *, every=1, first=0):
    """(what was changed, the changed schedule); some differ in nothing that counts.

    Args:
        schedule: What to change.
        every: Only so many-th changes, from the `first` on.
        first: Less than `every`.
    """
    for what, tables in islice(changes(schedule), first, None, every):
        yield what, tables if isinstance(tables, Schedule) else built(schedule, tables)


def changes(schedule):
    """As `mutants`; some as tables that are still to be built."""
    tables = {
        "transfers": [list(t) for t in schedule.transfer_list()],
        "combines": [list(c) for c in schedule.combine_list()],
        "inputs": schedule.inputs.tolist(),
        "outputs": schedule.outputs.tolist(),
        "chunks": [list(chunk) for chunk in schedule.chunks],
        "owners": list(schedule.owners),
        "nodes": [list(node) for node in schedule.nodes],
        "paths": [list(path) for path in schedule.paths],
    }
    limits = limits_of(schedule)
    for name in TABLES:
        for what, rows in changed_rows(tables[name], limits.get(name, [])):
            yield f"{name}: {what}", tables | {name: rows}
    for row, fold in enumerate(tables["combines"]):
        for what, slots in changed_rows(list(fold[4]), [limits["combines"][2]]):
            rows = [*tables["combines"][:row], [*fold[:4], slots], *tables["combines"][row + 1 :]]
            yield f"combine {row}: operands: {what}", tables | {"combines": rows}
    yield from other_repeats(schedule)


def limits_of(schedule):
    """Of every column, one more than the greatest number to aim at; that one is out of range."""
    slots = [schedule.inputs[:, 1], schedule.outputs[:, 1], schedule.transfers[:, 4], schedule.combines[:, 2]]
    slot = max([int(column.max()) for column in slots if len(column)]) + 2
    rank, chunk, rounds = schedule.ranks + 1, len(schedule.chunks) + 1, schedule.rounds + 1
    most = max([rows for _, rows in schedule.chunks]) + 2
    return {
        "transfers": [rounds, rank, slot, rank, slot, chunk, len(schedule.paths) + 1],
        "combines": [rounds, rank, slot, chunk],
        "inputs": [rank, slot, max(rank, len(schedule.nodes) + 1)],
        "outputs": [rank, slot, chunk],
        "chunks": [most, most],
        "owners": [rank],
        "nodes": [max([high for _, high in schedule.nodes], default=0) + 2] * 2,
    }


def changed_rows(rows, limits):
    """The rows with one change. Rows are lists of numbers, of which those with limits are changed, or numbers."""
    for at, row in enumerate(rows):
        yield f"delete {at}", rows[:at] + rows[at + 1 :]
        yield f"double {at}", [*rows[: at + 1], *rows[at:]]
        numbers = row if isinstance(row, list) else [row]
        for column, limit in enumerate(limits):
            for number in range(-1, limit):
                if number != numbers[column]:
                    aimed = [*numbers[:column], number, *numbers[column + 1 :]]
                    yield f"aim {at}, {column} at {number}", with_row(rows, at, aimed if row is numbers else number)
    for (a, first), (b, second) in combinations(enumerate(rows), 2):
        if first != second:
            yield f"swap {a} and {b}", with_row(with_row(rows, a, second), b, first)
        for column in range(min(len(first), len(second)) if isinstance(first, list) else 0):
            if first[column] != second[column]:
                one, other = list(first), list(second)
                one[column], other[column] = other[column], one[column]
                yield f"swap {column} of {a} and {b}", with_row(with_row(rows, a, one), b, other)


def with_row(rows, at, row):
    return [*rows[:at], row, *rows[at + 1 :]]


def other_repeats(schedule):
    shortest = min([rows for _, rows in schedule.chunks if rows], default=3)
    for count in (-1, 0, 1, 2, shortest, shortest + 1):
        for stagger in (-1, 0, 1, schedule.rounds + 1):
            yield f"repeat {count}, {stagger}", replace(schedule, repeat=Repeat(count, stagger))
    if schedule.repeat is not None:
        yield "no repeat", replace(schedule, repeat=None)


def built(schedule, tables):
    """The schedule with these tables, sorted by round."""
    made = make_schedule(
        schedule.ranks,
        tables["chunks"],
        inputs=tables["inputs"],
        outputs=tables["outputs"],
        transfers=[Transfer(*row) for row in tables["transfers"]],
        combines=[Combine(*row[:4], tuple(row[4])) for row in tables["combines"]],
        paths=tables["paths"],
        owners=tables["owners"],
        nodes=tables["nodes"],
        repeat=schedule.repeat,
    )
    return replace(made, rounds=max(made.rounds, schedule.rounds))


def rebuilt(schedule: Schedule, transfers=None, combines=None, **changes) -> Schedule:
    fields = {
        "inputs": schedule.inputs.tolist(),
        "outputs": schedule.outputs.tolist(),
        "transfers": schedule.transfer_list() if transfers is None else transfers,
        "combines": schedule.combine_list() if combines is None else combines,
        "owners": schedule.owners,
        "nodes": schedule.nodes,
    }
    return make_schedule(schedule.ranks, schedule.chunks, **(fields | changes))


def mutate(schedule: Schedule, rng: random.Random) -> Schedule:
    """One random deletion, duplication, swap or re-target of a transfer, a combine or an output."""
    transfers, combines, outputs = schedule.transfer_list(), schedule.combine_list(), schedule.outputs.tolist()
    target: list = rng.choice([some for some in (transfers, combines, outputs) if some])
    index = rng.randrange(len(target))
    kind = rng.choice(["delete", "duplicate", "swap", "retarget"])
    entry = target[index]
    if kind == "delete":
        target.pop(index)
    elif kind == "duplicate":
        target.append(entry)
    elif kind == "swap":
        other = rng.randrange(len(target))
        if target is outputs:  # the slots change places
            target[index], target[other] = (
                [*entry[:1], target[other][1], entry[2]],
                [target[other][0], entry[1], target[other][2]],
            )
        else:
            a, b = entry.round, target[other].round
            target[index], target[other] = entry._replace(round=b), target[other]._replace(round=a)
    elif target is outputs:
        column = rng.randrange(3)
        target[index] = [rng.randrange(8) if at == column else item for at, item in enumerate(entry)]
    elif isinstance(entry, Transfer):
        field = rng.choice(["src", "src_slot", "dst", "dst_slot", "chunk"])
        target[index] = entry._replace(**{field: rng.randrange(8)})
    elif rng.random() < 0.5:
        field = rng.choice(["rank", "out_slot", "chunk"])
        target[index] = entry._replace(**{field: rng.randrange(8)})
    else:
        slots = list(entry.operands)
        slots[rng.randrange(len(slots))] = rng.randrange(8)
        rng.shuffle(slots)
        target[index] = entry._replace(operands=tuple(slots))
    return rebuilt(schedule, transfers=transfers, combines=combines, outputs=outputs)
