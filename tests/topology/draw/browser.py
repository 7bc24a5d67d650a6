"""Opens a page in a headless Chromium and returns what a script finds in it."""

import html
import json
import os
import re
import shutil
import subprocess

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def find():
    """Path of a Chromium: of $CHROME, of the PATH, or of a Playwright; None without."""
    named = os.environ.get("CHROME")
    if named and shutil.which(named):
        return named
    on_path = next((found for name in NAMES if (found := shutil.which(name))), None)
    if on_path:
        return on_path
    root = os.environ.get("PLAYWRIGHT_BROWSERS_PATH") or os.path.expanduser("~/.cache/ms-playwright")
    for folder, _, files in os.walk(root):
        if "chrome" in files:
            return os.path.join(folder, "chrome")
    return None


def measured(page, script, folder, size=(1280, 800)):
    """The value of a script's `return` in the page, as JSON; errors of the page's own scripts are under `errors`."""
    browser = find()
    if browser is None:
        pytest.skip("no Chromium on this machine")
    watch = "<script>window.__errors = []; window.onerror = (m) => { window.__errors.push(String(m)); };"
    watch += "console.error = (...m) => { window.__errors.push(m.join(' ')); };</script>"
    report = f"""<script>(() => {{
      const found = (() => {{ {script} }})();
      const out = document.createElement("pre");
      out.id = "measured";
      out.textContent = JSON.stringify({{ found, errors: window.__errors }});
      document.body.append(out);
    }})();</script>"""
    head, tail = page.replace("<head>", f"<head>{watch}", 1).rsplit("</body>", 1)
    file = folder / "page.html"
    file.write_text(f"{head}{report}</body>{tail}", "utf-8")
    done = subprocess.run(
        [
            browser,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            f"--user-data-dir={folder / 'profile'}",
            f"--window-size={size[0]},{size[1]}",
            "--dump-dom",
            file.as_uri(),
        ],
        capture_output=True,
        timeout=120,
        check=False,
    )
    text = done.stdout.decode("utf-8", "replace")
    found = re.search(r'<pre id="measured">(.*?)</pre>', text, re.DOTALL)
    assert found, done.stderr.decode("utf-8", "replace")[-2000:]
    return json.loads(html.unescape(found[1]))
