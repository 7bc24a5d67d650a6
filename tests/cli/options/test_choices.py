"""The literal names are those of the tables."""

from topocomm.cli.options import choices
from topocomm.cli.work.plan_work import FORMATS
from topocomm.planning.collectives import COLLECTIVES, ORDERS
from topocomm.planning.formats.msccl_blocks import RUNTIMES
from topocomm.planning.plan import OBJECTIVES, PORT_MODELS
from topocomm.simulation.decode import DEVICES, METHODS, MODELS
from topocomm.simulation.protocols import TRANSPORTS
from topocomm.simulation.runs import PLANNED, algorithms


def test_every_name_is_in_its_table_and_no_other():
    tables = {
        "COLLECTIVES": COLLECTIVES,
        "ORDERS": ORDERS,
        "OBJECTIVES": OBJECTIVES,
        "PORT_MODELS": PORT_MODELS,
        "PLAN_FORMATS": tuple(FORMATS),
        "RUNTIMES": tuple(RUNTIMES),
        "ALGORITHMS": algorithms(),
        "PROTOCOLS": tuple(TRANSPORTS),
        "MODELS": tuple(MODELS),
        "METHODS": tuple(METHODS),
        "DEVICES": tuple(DEVICES),
    }
    named = {name: value for name, value in vars(choices).items() if name.isupper() and isinstance(value, tuple)}
    assert named == tables
    assert choices.PLANNED == PLANNED
