"""What all tests share."""

import os

import pytest


@pytest.fixture(scope="session", autouse=True)
def _records(tmp_path_factory):
    """Records of failures that tests make go with the tests."""
    os.environ.setdefault("TOPOCOMM_RECORD_DIR", str(tmp_path_factory.mktemp("records")))
