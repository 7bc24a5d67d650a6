"""Ranks that are processes with Triton's interpreter, on memory that all of them map.

    python -m tests.execute.peer_ranks

takes jobs from stdin, a JSON object a line: what to run of `peer_jobs`, as which rank of how many, on which file, with
which arguments; and answers each with a line. `Ranks` starts such processes and gives them jobs.
"""

import json
import mmap
import os
import select
import subprocess
import sys
import time
import traceback
from importlib import import_module
from pathlib import Path

import numpy as np

from tests.torch_jobs import environment

ROOT = Path(__file__).parents[2]
LIMIT_S = 150.0


class Ranks:
    """So many processes, for jobs of as many ranks or fewer."""

    def __init__(self, most):
        command = [sys.executable, "-m", "tests.execute.peer_ranks"]
        variables = environment(TRITON_INTERPRET="")
        variables.pop("TRITON_INTERPRET")
        self.processes = [
            subprocess.Popen(command, cwd=ROOT, env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            for _ in range(most)
        ]

    def run(self, size, job, *, limit_s=LIMIT_S, **arguments):
        """What `peer_jobs.job` gives on every rank; fails where it raises on one, or does not end: then all are killed.

        Args:
            size: Number of ranks.
            job: Its name.
            limit_s: It ends by then.
            arguments: Plain data.
        """
        from tests.execute.peer_memories import memory_of

        file = os.memfd_create("peers")
        try:
            os.truncate(file, memory_of(size))
            path = f"/proc/{os.getpid()}/fd/{file}"
            for rank in range(size):
                told = {"job": job, "rank": rank, "size": size, "path": path, "arguments": arguments}
                self.processes[rank].stdin.write(json.dumps(told) + "\n")
                self.processes[rank].stdin.flush()
            until_s = time.monotonic() + limit_s
            answers = [self._answer(rank, until_s) for rank in range(size)]
        finally:
            os.close(file)
        if any(answer.get("error") == "it does not end" for answer in answers):
            self.close()
        wrong = [f"rank {rank}: {answer['error']}" for rank, answer in enumerate(answers) if "error" in answer]
        assert not wrong, "\n".join(wrong)
        return [answer["made"] for answer in answers]

    def _answer(self, rank, until_s):
        process = self.processes[rank]
        ready, _, _ = select.select([process.stdout], [], [], max(0.0, until_s - time.monotonic()))
        if not ready:
            return {"error": "it does not end"}
        line = process.stdout.readline()
        return json.loads(line) if line else {"error": "its process has ended"}

    def close(self):
        for process in self.processes:
            process.kill()
            process.communicate()


def main():
    jobs = import_module("tests.execute.peer_jobs")
    for line in sys.stdin:
        told = json.loads(line)
        try:
            with open(told["path"], "r+b") as file:
                shared = np.frombuffer(mmap.mmap(file.fileno(), 0), np.uint8)
            made = getattr(jobs, told["job"])(told["rank"], told["size"], shared, **told["arguments"])
            answer = {"made": made}
        except BaseException:  # noqa: BLE001 - the parent tells of it
            answer = {"error": traceback.format_exc()}
        sys.__stdout__.write(json.dumps(answer) + "\n")
        sys.__stdout__.flush()


if __name__ == "__main__":
    main()
