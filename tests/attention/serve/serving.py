"""Starts servers for tests, and what they serve: a tiny random Llama that knows ASCII letters."""

import contextlib
import http.client
import json
import os
import re
import signal
import string
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import openai
import torch

from tests.attention.huggingface.tiny_llama import build
from tests.mpi import environment

LETTERS = string.ascii_letters + string.digits + string.punctuation + " \n"
TEMPLATE = (
    "{% for m in messages %}{{ m['role'][0] }}:{{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}a:{% endif %}"
)
POSITIONS = 2048
LIMIT_S = 120


def save_model(path, *, end_token=None, template=TEMPLATE):
    """A model directory; `end_token` ends its answers."""
    import transformers
    from tokenizers import Tokenizer, decoders, models

    vocabulary = ["<pad>", "<end>", *LETTERS]
    tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate(vocabulary)}, []))
    tokenizer.decoder = decoders.Fuse()
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<end>")
    fast.chat_template = template
    fast.save_pretrained(path)
    model = build(
        vocab_size=len(vocabulary),
        bos_token_id=None,
        pad_token_id=0,
        eos_token_id=end_token,
        max_position_embeddings=POSITIONS,
    )
    model.save_pretrained(path)
    return path


class Reference:
    """What plain transformers makes of a model directory."""

    def __init__(self, path):
        import transformers

        self.tokenizer = transformers.AutoTokenizer.from_pretrained(path)
        self.model = transformers.AutoModelForCausalLM.from_pretrained(path)

    def ids(self, prompt):
        if isinstance(prompt, str):
            return self.tokenizer(prompt)["input_ids"]
        if isinstance(prompt[0], int):
            return prompt
        return self.tokenizer.apply_chat_template(prompt, add_generation_prompt=True, return_dict=True)["input_ids"]

    def tokens(self, ids, count):
        """The greedy tokens after these."""
        made = self.model.generate(
            input_ids=torch.tensor([ids]), attention_mask=torch.ones(1, len(ids)), max_new_tokens=count, do_sample=False
        )
        return made[0, len(ids) :].tolist()

    def text(self, prompt, count):
        """The same as text, without the token that ends it; of a text, messages or token ids."""
        ids = self.ids(prompt)
        end = self.model.generation_config.eos_token_id
        return self.tokenizer.decode(
            [token for token in self.tokens(ids, count) if token != end], skip_special_tokens=True
        )


class Server:
    """A running `python -m attention serve`, under mpirun where ranks are given."""

    def __init__(self, model, *arguments, ranks=None, options=()):
        launcher = ["mpirun", *options, "-n", str(ranks)] if ranks else []
        self._mark = f"--model={model}\0--port=0".encode()
        command = [*launcher, sys.executable, "-m", "attention", "serve", f"--model={model}", "--port=0", *arguments]
        self.process = subprocess.Popen(
            command, stderr=subprocess.PIPE, text=True, env=environment(), start_new_session=True
        )
        self.said, self._ready = [], threading.Event()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        self.port = None

    def _listen(self):
        for line in self.process.stderr:
            self.said.append(line)
            if " on http://" in line:
                self.port = int(re.search(r":(\d+)/v1", line)[1])
                self._ready.set()
        self._ready.set()

    def __enter__(self):
        self._ready.wait(LIMIT_S)
        if self.port is None:
            self.__exit__()
            raise AssertionError("".join(self.said))
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.wait()

    def wait(self):
        """Its exit status; it has to end by itself."""
        try:
            status = self.process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            for pid in (*self.pids().values(), self.process.pid):
                os.kill(pid, signal.SIGKILL)
            raise
        self._listener.join(LIMIT_S)
        self.process.stderr.close()
        return status

    def client(self):
        return openai.OpenAI(
            base_url=f"http://127.0.0.1:{self.port}/v1", api_key="none", max_retries=0, timeout=LIMIT_S
        )

    def get(self, path):
        return self.ask("GET", path)

    def post(self, path, body, **headers):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.ask("POST", path, data, headers)

    def begin(self, path, body):
        """The connection of a request whose answer is not read."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=LIMIT_S)
        connection.request("POST", path, json.dumps(body).encode())
        return connection

    def ask(self, method, path, data=None, headers=None):
        """Status, headers, text and JSON of an answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=LIMIT_S)
        with contextlib.closing(connection):
            connection.request(method, path, data, headers or {})
            answer = connection.getresponse()
            text = answer.read().decode()
        made = json.loads(text) if "json" in answer.headers["Content-Type"] else None
        return SimpleNamespace(status=answer.status, headers=answer.headers, text=text, json=made)

    def figure(self, name):
        """A figure of /metrics; 0 where it is not there yet."""
        found = re.search(rf"^{re.escape(name)} (\S+)$", self.get("/metrics").text, re.MULTILINE)
        return float(found[1]) if found else 0.0

    def pids(self):
        """The process of every rank under mpirun, by rank."""
        found = {}
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if self._mark in (entry / "cmdline").read_bytes():
                    rank = re.search(rb"\0OMPI_COMM_WORLD_RANK=(\d+)", (entry / "environ").read_bytes())
                    found |= {int(rank[1]): int(entry.name)} if rank else {}
        return found


def eventually(holds):
    """Wait until something holds."""
    until_s = time.monotonic() + LIMIT_S
    while not holds():
        assert time.monotonic() < until_s
        time.sleep(0.05)
