"""Settings from the environment (docs/guide/settings.md), read once per communicator and checked."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, cast

from topocomm.errors import TopocommError
from topocomm.execute.liveness.log import LEVELS
from topocomm.execute.liveness.recorder import default_directory
from topocomm.execute.liveness.waiting import SHRINK

Check = Literal["first", "always", "never"]


@dataclass(frozen=True)
class Settings:
    """Settings of one communicator; for error texts `limit` names what set `timeout_s`, `remedy` what helps a loss."""

    check: Check = "first"
    timeout_s: float = 300.0
    record_dir: Path = field(default_factory=default_directory)
    log: str = "off"
    limit: str = "TOPOCOMM_TIMEOUT_S"
    remedy: str = SHRINK

    def with_timeout(self, timeout_s: float, limit: str) -> Settings:
        """Return these settings with another time limit, and the name of what set it."""
        return replace(self, timeout_s=timeout_s, limit=limit)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Settings:
        """Read the settings from the environment.

        Raises:
            TopocommError: A variable holds something else than its values.
        """
        check = environment.get("TOPOCOMM_CHECK", "first")
        if check not in ("first", "always", "never"):
            raise TopocommError(f"TOPOCOMM_CHECK={check!r}: expected first, always or never")
        text = environment.get("TOPOCOMM_TIMEOUT_S", "300")
        try:
            timeout_s = float(text)
        except ValueError:
            timeout_s = -1.0
        if not timeout_s > 0:
            raise TopocommError(f"TOPOCOMM_TIMEOUT_S={text!r}: expected a positive number of seconds")
        log = environment.get("TOPOCOMM_LOG", "off")
        if log not in LEVELS:
            raise TopocommError(f"TOPOCOMM_LOG={log!r}: expected {', '.join(LEVELS)}")
        folder = environment.get("TOPOCOMM_RECORD_DIR")
        return cls(cast(Check, check), timeout_s, Path(folder) if folder else default_directory(), log)
