"""`python -m attention serve` as a job: its options, its end by a signal, and ranks that die."""

import json
import os
import signal
import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import openai
import pytest

from attention.__main__ import main
from tests.attention.serve.serving import Server, eventually, save_model
from tests.mpi import mpirun

ASK = {"model": "tiny", "prompt": "some text that goes on", "temperature": 0}
LONG = {**ASK, "max_tokens": 1900}
CPU_SHARE = 0.25
"""Of a core, for a rank that has nothing to do; one that spins takes a whole one."""


def error_line(capsys):
    said = capsys.readouterr()
    assert said.out == ""
    (line,) = said.err.splitlines()
    return line


def test_bad_options(served, capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["serve", f"--model={served}", f"--port={port}"]) == 2
        assert f"--host 127.0.0.1 --port {port}: cannot listen there: " in error_line(capsys)
    assert main(["serve", f"--model={served}", "--max-context=2049"]) == 2
    assert "--max-context 2,049: the model has 2,048 positions" in error_line(capsys)
    with pytest.raises(SystemExit):
        main(["serve", "--model=x", "--port=65536"])
    assert "expected a port from 0 to 65535, got '65536'" in error_line(capsys)


def test_a_missing_library_is_named(served, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "attention.serve.http_server", None)
    assert main(["serve", f"--model={served}"]) == 1
    assert "pip install 'transformers" in error_line(capsys)


@pytest.mark.long
def test_bad_options_under_mpirun_end_at_once(served):
    done = mpirun(2, ["-m", "attention", "serve", f"--model={served}", "--max-context=2049"], timeout_s=60)
    assert done.returncode == 2
    assert len([line for line in done.stderr.splitlines() if line.startswith("attention serve:")]) == 1


@pytest.mark.long
def test_alone_until_interrupted(served, tmp_path):
    """Without mpirun; a model without a chat template says so, and SIGINT ends a stream with an error."""
    plain = save_model(tmp_path / "tiny", template=None)
    with Server(plain) as server, server.client() as client:
        with pytest.raises(openai.BadRequestError, match="no chat template; use /v1/completions"):
            client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "x"}])
        stream = iter(client.completions.create(**LONG, stream=True))
        next(stream)
        server.process.send_signal(signal.SIGINT)
        with pytest.raises(openai.APIError, match="the server ends"):
            list(stream)
        assert server.wait() == 0
    assert len(server.said) == 1, server.said


@pytest.mark.long
@pytest.mark.parametrize("rank", [0, 1])
def test_a_signal_to_any_rank_ends_all(served, rank):
    with Server(served, ranks=2) as server, ThreadPoolExecutor(1) as pool:
        answer = pool.submit(server.post, "/v1/completions", LONG)
        eventually(lambda: server.figure("topocomm_running_answers") == 1)
        os.kill(server.pids()[rank], signal.SIGTERM)
        assert answer.result().status == 503
        assert answer.result().json["error"]["message"] == "the server ends"
        assert server.wait() == 0, server.said
    assert len(server.said) == 1, server.said


@pytest.mark.alone
@pytest.mark.long
def test_ranks_without_work_wait_beyond_the_limit_and_leave_their_cores(served, monkeypatch):
    monkeypatch.setenv("TOPOCOMM_TIMEOUT_S", "3")
    with Server(served, ranks=2) as server, server.client() as client:
        pids, began_s = server.pids(), time.monotonic()
        before = [processor_s(pids[rank]) for rank in (0, 1)]
        time.sleep(6)
        shares = [(processor_s(pids[rank]) - before[rank]) / (time.monotonic() - began_s) for rank in (0, 1)]
        assert client.completions.create(**ASK, max_tokens=2).usage.completion_tokens == 2
    assert max(shares) < CPU_SHARE


def processor_s(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize(
    "weights", [pytest.param("replicated", marks=pytest.mark.soak), pytest.param("sharded", marks=pytest.mark.long)]
)
def test_the_others_go_on_when_a_rank_dies(served, reference, weights):
    """Answers under way end with an error, whole and streamed; those that wait, and later ones, are right."""
    with (
        Server(served, "--max-batch=2", f"--weights={weights}", ranks=3, options=("--with-ft", "ulfm")) as server,
        server.client() as client,
        ThreadPoolExecutor(2) as pool,
    ):
        whole = pool.submit(server.post, "/v1/completions", LONG)
        eventually(lambda: server.figure("topocomm_running_answers") == 1)
        stream = iter(client.completions.create(**LONG, stream=True))
        next(stream)
        waits = pool.submit(server.post, "/v1/completions", {**ASK, "max_tokens": 5})
        eventually(lambda: server.figure("topocomm_queue_length") == 1)
        os.kill(server.pids()[1], signal.SIGKILL)
        with pytest.raises(openai.APIError, match="a rank was lost"):
            list(stream)
        assert whole.result().status == 503
        assert "a rank was lost" in whole.result().json["error"]["message"]
        assert waits.result().json["choices"][0]["text"] == reference.text(ASK["prompt"], 5)
        made = client.completions.create(**ASK, max_tokens=30)
        assert made.choices[0].text == reference.text(ASK["prompt"], 30)
        assert server.figure("topocomm_ranks") == 2
        assert server.get("/health").json == {"status": "ok"}
        os.kill(server.pids()[0], signal.SIGTERM)
        server.wait()
    assert any("goes on with 2 ranks" in line for line in server.said), server.said


@pytest.mark.long
def test_without_rank_0_the_job_ends(served):
    with Server(served, ranks=2, options=("--with-ft", "ulfm")) as server:
        os.kill(server.pids()[0], signal.SIGKILL)
        assert server.wait() != 0
    said = [line for line in server.said if line.startswith("attention serve: error: ")]
    assert said == ["attention serve: error: rank 0, which listens, is gone; start the job again\n"], server.said


@pytest.mark.long
def test_a_death_under_a_plain_mpirun_ends_the_job(served):
    with Server(served, ranks=2) as server:
        connection = server.begin("/v1/completions", LONG)
        eventually(lambda: server.figure("topocomm_running_answers") == 1)
        os.kill(server.pids()[1], signal.SIGKILL)
        assert server.wait() != 0
        connection.close()
    assert json.dumps(server.said).count("Traceback") == 0, server.said
