#!/bin/bash
# setup.sh WHAT: what the booted guest needs on this machine. Idempotent; root on Debian 12 or 13.
#   vm    an emulator, a builder of Debian trees, file systems from directories
#   node  vm, and a kubelet built from its Go module (about five minutes on two cores; cached by version)
# Cache: ${XDG_CACHE_HOME:-~/.cache}/nri-warmup-lab, as in ../setup.sh, whose lock this takes too.
set -eu
export PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin
here=$(cd "$(dirname "$0")" && pwd)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/nri-warmup-lab
kubernetes=1.37.2

say() { echo "vm: $*"; }
die() { echo "vm: $*" >&2; exit 1; }

need() {
    local missing=() pair
    for pair in "$@"; do command -v "${pair%%=*}" >/dev/null || [ -e "${pair%%=*}" ] || missing+=("${pair#*=}"); done
    [ ${#missing[@]} -gt 0 ] || return 0
    [ "$(id -u)" = 0 ] || die "not root: install ${missing[*]} first"
    say "installing ${missing[*]}"
    { apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -yq --no-install-recommends "${missing[@]}"; } >"$cache/apt.log" 2>&1 ||
        { cat "$cache/apt.log"; die "apt-get install failed"; }
}

vm() {
    need qemu-system-x86_64=qemu-system-x86 mmdebstrap=mmdebstrap mke2fs=e2fsprogs gcc=gcc /usr/include/stdio.h=libc6-dev \
        /usr/share/doc/debian-archive-keyring=debian-archive-keyring
}

# Kubernetes points at its staging modules by relative paths, which hold in its own tree only: whoever uses the module from
# outside has to point at their released versions. The list is in the module's own go.mod.
replace_staging() {
    local mod
    mod=$("$go" mod download -json "k8s.io/kubernetes@v$kubernetes" | sed -n 's/^\t"GoMod": "\(.*\)",$/\1/p')
    sed -n 's#^\t*\(replace \)\{0,1\}\(k8s.io/[a-z-]*\) => \./staging/.*#\2#p' "$mod" | sort -u | while read -r module; do
        "$go" mod edit -replace "$module=$module@v0.${kubernetes#1.}"
    done
}

node() {
    local dir=$cache/kubelet-v$kubernetes work started=$SECONDS
    vm
    if [ ! -x "$dir/kubelet" ]; then
        say "kubelet: building v$kubernetes (about five minutes)"
        go=$("$here/../go.sh")
        work=$(mktemp -d)
        mkdir -p "$dir.new"
        (
            cd "$work"
            export GOFLAGS="-buildvcs=false -mod=mod" GOTOOLCHAIN=local CGO_ENABLED=0
            "$go" mod init lab && replace_staging && "$go" get "k8s.io/kubernetes/cmd/kubelet@v$kubernetes" &&
                nice -n 10 "$go" build -ldflags "-s -w -X k8s.io/component-base/version.gitVersion=v$kubernetes" \
                    -o "$dir.new/kubelet" k8s.io/kubernetes/cmd/kubelet
        ) >"$cache/go.log" 2>&1 || { tail -n 30 "$cache/go.log"; rm -rf "$work"; die "building kubelet failed"; }
        rm -rf "$work" "$dir"
        mv -T "$dir.new" "$dir"
        say "kubelet: built in $((SECONDS - started)) s"
    fi
    ln -sfn "kubelet-v$kubernetes" "$cache/kubelet"
    say "kubelet: $("$dir/kubelet" --version)"
}

mkdir -p "$cache"
exec 9>"$cache/.lock"
flock 9
case ${1:-} in
vm) vm ;;
node) node ;;
*) sed -n '2,5s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
esac
