#!/bin/sh
# Build sdist and wheel, check both, install the wheel into an environment of its own and use it from elsewhere.
#
#   make release-check
#
# PYTHON: a Python with build, hatchling and twine. The new environment sees that Python's packages, so that torch is not
# installed again, but gets attnflow from the wheel alone.
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
rm -rf dist

"$python" -m build --no-isolation --outdir dist . >"$work/build.log" 2>&1 || { cat "$work/build.log"; exit 1; }
"$python" -m twine check --strict dist/*
wheel=$(ls dist/*.whl)
size=$(($(wc -c <"$wheel") / 1024))
echo "$wheel: $size KiB (at most 15360)"
[ "$size" -le 15360 ]

"$python" -m venv "$work/venv"
inner=$("$work/venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
outer=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps "$wheel"
echo "$outer" >"$inner/others.pth"
unset PYTHONPATH
cd "$work"
found=$("$work/venv/bin/python" -c 'import attnflow; print(attnflow.__file__)')
case $found in "$inner"*) ;; *) echo "attnflow comes from $found and not from the wheel"; exit 1 ;; esac
"$work/venv/bin/attnflow" --version
"$work/venv/bin/attnflow" demo >"$work/demo.txt" || { cat "$work/demo.txt"; exit 1; }
grep -q keys "$work/demo.txt"
"$work/venv/bin/python" -m pip check >/dev/null 2>&1 || echo "note: pip check names packages of the outer environment"
echo "release-check: the wheel does as told"
