"""The notebook runs from top to bottom in a kernel of this Python, and says what it is to show."""

from pathlib import Path

import nbclient
import nbformat
import pytest

NOTEBOOK = Path(__file__).parents[2] / "docs/examples/inspect_to_reduction.ipynb"


def read():
    return nbformat.read(NOTEBOOK, as_version=4)


def test_it_is_stored_without_outputs():
    cells = [cell for cell in read().cells if cell.cell_type == "code"]
    assert cells and not any(cell.outputs or cell.execution_count for cell in cells)
    assert NOTEBOOK.stat().st_size < 10_000


@pytest.mark.long
@pytest.mark.filterwarnings("default")  # what Jupyter's own libraries warn of is not ours
def test_it_runs(tmp_path, monkeypatch):
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    notebook, place = read(), {"metadata": {"path": tmp_path}}
    nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3", resources=place).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    said = "".join(output.get("text", "") for output in outputs)
    assert "dgx-h100: 8 gpu" in said and "of the bound" in said and "operator 'limits'" in said and "on 4 ranks" in said
    assert any("image/svg+xml" in output.get("data", {}) for output in outputs)
