#!/bin/bash
# venv.sh PYTHON DIR: a virtual environment with the package (editable) and its development tools.
set -eu
python=$1 dir=$2
cd "$(dirname "$0")/../.."
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    echo "venv.sh: $python is not Python 3.11 or newer; pass PYTHON=…" >&2
    exit 2
fi
if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    [ "$(id -u)" = 0 ] || { echo "venv.sh: $python has no venv module; install python3-venv" >&2; exit 2; }
    apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -yq --no-install-recommends python3-venv
fi
[ -x "$dir/bin/python" ] || "$python" -m venv "$dir"
"$dir/bin/python" -m pip install --quiet --disable-pip-version-check -e '.[dev]'
