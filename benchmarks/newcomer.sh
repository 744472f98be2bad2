#!/bin/sh
# What a newcomer does, from nothing: build, install into a clean environment, every snippet and every command of the
# README, both notebooks. Stops at the first line that does not do as told, with exit code 1.
#
#   make newcomer            # a few minutes; torch and the other packages come from the outer environment
#   FULL=1 make newcomer     # installs every package anew, by constraints.txt
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-python3}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false
unset PYTHONPATH
step() { echo "== $*"; }

step "build"
"$python" -m build --wheel --no-isolation --outdir "$work/dist" "$root" >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }

step "install into a clean environment"
"$python" -m venv "$work/venv"
new=$work/venv/bin/python
pip() { "$new" -m pip install --quiet --disable-pip-version-check --constraint "$root/constraints.txt" "$@"; }
if [ -n "${FULL:-}" ]; then
  pip torch
  pip "$work"/dist/*.whl nbclient nbformat ipykernel
else
  pip --no-deps "$work"/dist/*.whl
  "$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
    >"$("$new" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/others.pth"
fi
PATH="$work/venv/bin:$PATH"
mkdir "$work/home" && cd "$work/home"
"$new" -c "import attnflow, sys; sys.exit(not attnflow.__file__.startswith('$work'))"

step "every snippet of the README"
"$new" - "$root/README.md" <<'PY'
import re, subprocess, sys
from pathlib import Path

text = Path(sys.argv[1]).read_text("utf-8")
blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
assert len(blocks) >= 4, "the README has lost its snippets"
for number, code in enumerate(blocks):
    Path("snippet.py").write_text(code, "utf-8")
    done = subprocess.run([sys.executable, "snippet.py"], capture_output=True, text=True)
    if done.returncode or not done.stdout.strip():
        sys.exit(f"snippet {number} of the README:\n{code}\n{done.stdout}\n{done.stderr}")
    print(done.stdout.splitlines()[0][:100])
    if number in (0, 1):
        assert "keys" in done.stdout, f"snippet {number} does not name the subject:\n{done.stdout}"
PY
test -s page.html

step "every command of the README, on a model in a folder"
"$new" -c "
from attnflow import demo
demo.model().save_pretrained('MODEL'); demo.tokenizer().save_pretrained('MODEL')" 2>/dev/null
"$new" - "$root/README.md" >commands.txt <<'PY'
import re, sys
from pathlib import Path

for block in re.findall(r"```sh\n(.*?)```", Path(sys.argv[1]).read_text("utf-8"), re.DOTALL):
    for line in block.splitlines():
        if line.startswith("attnflow "):
            print(line.split("   #")[0].replace("page.html", "page-of-command.html"))
PY
test -s commands.txt
while read -r line; do
  echo "\$ $line"
  sh -c "$line" >out.txt 2>err.txt </dev/null || { cat out.txt err.txt; echo "failed: $line"; exit 1; }
  test -s out.txt
done <commands.txt
test -s page-of-command.html

step "help and version in half a second (twice that where the machine is busy)"
"$new" - <<'PY'
import subprocess, sys, time

for option in ("--help", "--version"):
    best = min(_t for _t in (
        (lambda s: (subprocess.run(["attnflow", option], check=True, capture_output=True), time.perf_counter() - s)[1])(
            time.perf_counter()) for _ in range(5)))
    print(f"attnflow {option}: {best:.2f} s")
    if best > 1.0:
        sys.exit(f"attnflow {option} takes {best:.2f} s")
PY

step "both notebooks, with their figures"
"$new" -m ipykernel install --prefix "$work/venv" --name python3 >/dev/null 2>&1
"$new" - "$root/examples" <<'PY'
import sys
from pathlib import Path

import nbclient, nbformat

for path in sorted(Path(sys.argv[1]).glob("*.ipynb")):
    notebook = nbformat.read(path, as_version=4)
    nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": "."}}).execute()
    kinds = [kind for cell in notebook.cells for out in cell.get("outputs", ()) for kind in out.get("data", {})]
    figures = sum(kind in ("image/png", "image/svg+xml") for kind in kinds)
    pages = kinds.count("text/html")
    print(f"{path.name}: {figures} figures, {pages} pages")
    wanted = sum(".plot(" in cell.source for cell in notebook.cells if cell.cell_type == "code")
    if figures < wanted or not pages:
        sys.exit(f"{path.name}: {wanted} figures were drawn, and {figures} are in the output")
PY
echo "newcomer: everything did as told"
