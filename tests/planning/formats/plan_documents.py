"""Plan files as documents, and how tests alter them."""

import copy
import json

from tests.machines import switch
from topocomm import plan
from topocomm.planning.formats.plan_json import dumps, plan_digest


def document(**changes):
    return json.loads(dumps(plan(switch(4), payload_bytes=64, **changes)))


def signed(text: dict) -> str:
    return json.dumps(text | {"digest": plan_digest(text)})


def change(text, path, value):
    """The document with one entry replaced, or removed where the value is None."""
    altered = copy.deepcopy(text)
    node = altered
    for key in path[:-1]:
        node = node[key]
    if value is None:
        del node[path[-1]]
    else:
        node[path[-1]] = value
    return altered


ORIGINAL = document()
