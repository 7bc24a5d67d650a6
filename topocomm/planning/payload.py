"""The layout of a payload that is given in bytes."""

from __future__ import annotations

from dataclasses import replace

from topocomm.errors import PlanError
from topocomm.operators.layout import Layout
from topocomm.operators.operator import Operator, as_operator


def layout_of(operator: Operator, payload_bytes: int) -> Layout:
    """So many bytes of an operator's rows, at its default sizes; of 0 bytes no rows.

    Raises:
        PlanError: They are no whole number of rows, or not the one value of an operator without rows.
        OperatorError: It is no operator, or an axis of it has no default size.
    """
    row_bytes = as_operator(operator).default_layout(1).row_bytes
    if payload_bytes < 0 or payload_bytes % row_bytes:
        raise PlanError(
            f"{payload_bytes} bytes: expected a whole number of rows of operator {operator.name!r}, "
            f"{row_bytes} bytes each"
        )
    rows = payload_bytes // row_bytes
    if not operator.splittable and rows > 1:
        raise PlanError(
            f"{payload_bytes} bytes: expected the {row_bytes} bytes of one value of operator {operator.name!r}, which "
            "has no rows, or 0"
        )
    layout = operator.default_layout(rows)
    return layout if layout.rows == rows else replace(layout, leading=(rows,))
