#!/bin/sh
# Install the tree with pip and without a network, in a fresh virtual environment, and run the command.
#
#     .ci/offline_install.sh [PYTHON]
#
# --no-index keeps pip from asking an index. Where `unshare` may make a network namespace, the build and the
# installation also run in one that has no interface, so nothing else can ask either.
set -eu

python=${1:-python3}
tree=$(CDPATH= cd -- "$(dirname -- "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT INT TERM

if unshare -n true 2>/dev/null; then
    offline="unshare -n"
elif unshare -rn true 2>/dev/null; then
    offline="unshare -rn"
else
    offline=""
    echo "offline_install: no network namespace here; --no-index alone keeps pip offline" >&2
fi

# The machine's own pip settings must not help.
export PIP_CONFIG_FILE=/dev/null PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
unset PIP_INDEX_URL PIP_EXTRA_INDEX_URL PIP_FIND_LINKS PYTHONPATH || true

$offline "$python" -m venv "$work/venv"
cd "$work"      # not in the tree: what runs below must be what was installed
$offline venv/bin/python -m pip install --quiet --no-index "$tree"
venv/bin/python -m pip check
$offline venv/bin/mockturtle --version
$offline venv/bin/python -m mockturtle --version
venv/bin/python -m pip uninstall --quiet --yes mockturtle
echo "OK: installed offline with $(venv/bin/python -c 'import platform; print("Python", platform.python_version())')${offline:+ in $offline}"
