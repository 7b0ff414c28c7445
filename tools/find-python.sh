#!/bin/sh
# Prints the path of a Python from 3.11 to 3.13 that can create virtual environments.
# Order: CROSSTRAIN_PYTHON, PATH, pyenv, uv.
set -u

check='import sys, venv, ensurepip
sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))'

try() {
    if [ -x "$1" ] && "$1" -I -c "$check" >/dev/null 2>&1; then
        printf '%s\n' "$1"
        exit 0
    fi
}

if [ -n "${CROSSTRAIN_PYTHON:-}" ]; then
    try "$CROSSTRAIN_PYTHON"
    echo "crosstrain: CROSSTRAIN_PYTHON is not a Python 3.11 to 3.13 with venv: $CROSSTRAIN_PYTHON" >&2
    exit 1
fi
for version in 3.11 3.12 3.13; do
    try "$(command -v "python$version" 2>/dev/null || true)"
done
try "$(command -v python3 2>/dev/null || true)"
for version in 3.11 3.12 3.13; do
    for candidate in "${PYENV_ROOT:-${HOME:-/nonexistent}/.pyenv}"/versions/"$version".*/bin/python"$version"; do
        try "$candidate"
    done
    if command -v uv >/dev/null 2>&1; then
        try "$(uv python find --no-python-downloads "$version" 2>/dev/null || true)"
    fi
done
cat >&2 <<'MESSAGE'
crosstrain: no Python 3.11, 3.12 or 3.13 with the modules venv and ensurepip was found
on PATH, in pyenv or by uv.
To fix it: apt-get install python3 python3-venv, or uv python install 3.11, or pyenv install 3.11.
To name one yourself: CROSSTRAIN_PYTHON=/path/to/python3.11
MESSAGE
exit 1
