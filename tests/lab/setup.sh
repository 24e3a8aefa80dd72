#!/bin/bash
# setup.sh WHAT: what the tests and the demo need beside the virtual environment, installed and cached. Idempotent; run as root
# on Debian 12 or 13.
#   component  a Go toolchain (for the programs under tests/go)
#   demo       runc, containerd 1.7
#   test       component, and containerd 1.7, 2.1 and 2.4, a C compiler, a runc that can do user namespaces, CNI plugins
#   critest    test, and crictl, critest, a registry on loopback
#   crio       test, and what CRI-O needs beside it (CRI-O itself is in no Debian suite)
# Cache: ${XDG_CACHE_HOME:-~/.cache}/nri-warmup-lab. containerd/SLOT there is a link to a directory that holds
# containerd, containerd-shim-runc-v2 and ctr; the directory's name carries the version. LAB_REFRESH=1 asks the suites again.
set -eu
export PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin
what=${1:-}
here=$(cd "$(dirname "$0")" && pwd)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/nri-warmup-lab
containerd_module=v2.4.2
cri_tools_module=v1.37.0
runc_module=v1.5.3

say() { echo "lab: $*"; }
die() { echo "lab: $*" >&2; exit 1; }

# need PROGRAM=PACKAGE…: packages of the machine's own suite, only those whose program or file is missing.
need() {
    local missing=() pair program
    for pair in "$@"; do
        program=${pair%%=*}
        case $program in
        /*) [ -e "$program" ] || missing+=("${pair#*=}") ;;
        *) command -v "$program" >/dev/null || missing+=("${pair#*=}") ;;
        esac
    done
    [ ${#missing[@]} -gt 0 ] || return 0
    [ "$(id -u)" = 0 ] || die "not root: install ${missing[*]} first"
    say "installing ${missing[*]}"
    [ -n "${apt_updated:-}" ] || apt-get update -q >"$cache/apt.log" 2>&1 || { cat "$cache/apt.log"; die "apt-get update failed"; }
    apt_updated=1
    DEBIAN_FRONTEND=noninteractive apt-get install -yq --no-install-recommends "${missing[@]}" >"$cache/apt.log" 2>&1 ||
        { cat "$cache/apt.log"; die "apt-get install failed"; }
}

# link TARGET NAME: one rename, so that a reader sees the old or the new.
link() {
    mkdir -p "$(dirname "$2")"
    ln -sfn "$1" "$2.new.$$"
    mv -T "$2.new.$$" "$2"
}

# mirror: "URI" of the machine's own Debian archive, as apt itself understands its sources.
mirror() {
    local codename
    codename=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
    # shellcheck disable=SC2016  # apt expands these
    apt-get indextargets --format '$(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' |
        awk -v codename="$codename" '$2 == codename && $3 == "main" {print $1; exit}'
}

# from_suite SUITE PACKAGE SLOT BINARY: newest PACKAGE of SUITE, unpacked (never installed), containerd/SLOT -> its directory.
# apt gets a configuration of its own: sources, lists and status in the cache, nothing of the machine is touched.
from_suite() {
    local suite=$1 package=$2 slot=$3 binary=$4 apt uri deb dir keyring key
    if [ -x "$cache/$slot/$binary" ] && [ -z "${LAB_REFRESH:-}" ]; then
        say "$slot: $(basename "$(dirname "$(readlink "$cache/$slot")")") (cached)"
        return
    fi
    uri=$(mirror)
    [ -n "$uri" ] || die "found no Debian archive among this machine's apt sources"
    apt=$cache/apt-$suite
    mkdir -p "$apt"/{lists/partial,archives/partial,debs}
    for key in /usr/share/keyrings/debian-archive-keyring.{pgp,gpg}; do
        if [ -e "$key" ]; then keyring=" [signed-by=$key]"; break; fi
    done
    echo "deb${keyring:-} $uri $suite main" >"$apt/sources.list"
    say "$slot: asking $suite for $package"
    local options=(-q -o Dir::Etc::SourceList="$apt/sources.list" -o Dir::Etc::SourceParts=/dev/null -o Dir::State::Lists="$apt/lists"
        -o Dir::Cache="$apt" -o Dir::Cache::archives="$apt/archives" -o Dir::State::status=/dev/null
        -o Acquire::Check-Valid-Until=false -o APT::Sandbox::User=root -o Acquire::Languages=none)
    apt-get "${options[@]}" update >"$apt/log" 2>&1 || { cat "$apt/log"; die "apt-get update ($suite) failed"; }
    rm -f "$apt"/debs/*
    (cd "$apt/debs" && apt-get "${options[@]}" download "$package") >>"$apt/log" 2>&1 || { cat "$apt/log"; die "no $package in $suite"; }
    deb=$(echo "$apt"/debs/"$package"_*.deb)
    dir=$cache/$package-$(dpkg-deb -f "$deb" Version | tr ':' '_')
    if [ ! -x "$dir/bin/$binary" ]; then
        rm -rf "$dir" "$dir.new"
        mkdir -p "$dir.new"
        dpkg -x "$deb" "$dir.new/tree"
        link tree/usr/bin "$dir.new/bin"
        mv -T "$dir.new" "$dir"
    fi
    rm -rf "$apt/debs" "$apt/lists"
    link "$dir/bin" "$cache/$slot"
    say "$slot: $(basename "$dir") from $suite"
}

# build_go DIR COMMAND…: runs COMMAND with GOBIN=DIR.new and renames DIR.new to DIR when it succeeded.
build_go() {
    local dir=$1 started=$SECONDS
    shift
    rm -rf "$dir.new"
    mkdir -p "$dir.new"
    GOBIN=$dir.new CGO_ENABLED=${CGO_ENABLED:-0} GOFLAGS=-buildvcs=false GOTOOLCHAIN=local nice -n 10 "$@" >"$cache/go.log" 2>&1 ||
        { tail -n 30 "$cache/go.log"; die "building $(basename "$dir") failed"; }
    rm -rf "$dir"
    mv -T "$dir.new" "$dir"
    say "built $(basename "$(dirname "$dir")") in $((SECONDS - started)) s"
}

containerd_from_module() {
    local dir=$cache/containerd-$containerd_module/bin prefix=github.com/containerd/containerd/v2
    if [ ! -x "$dir/ctr" ]; then
        say "containerd/2.4: building $containerd_module (about two minutes)"
        build_go "$dir" "$go" install -ldflags "-s -w -X $prefix/version.Version=$containerd_module" \
            "$prefix/cmd/containerd@$containerd_module" "$prefix/cmd/containerd-shim-runc-v2@$containerd_module" "$prefix/cmd/ctr@$containerd_module"
    fi
    link "$dir" "$cache/containerd/2.4"
    say "containerd/2.4: $containerd_module"
}

# Debian 12's runc cannot map ids, which containerd 2 asks for before it gives a pod a user namespace.
runc_from_module() {
    local dir=$cache/runc-$runc_module/bin
    if [ ! -x "$dir/runc" ]; then
        say "runc: building $runc_module"
        CGO_ENABLED=1 build_go "$dir" "$go" install "github.com/opencontainers/runc@$runc_module"
    fi
    link "$dir" "$cache/runc"
    say "runc: $runc_module, beside $(runc --version | sed -n 's/^runc version //p') of this machine"
}

# critest is a test binary: go install cannot make it.
build_cri_tools() {
    local module=sigs.k8s.io/cri-tools work
    work=$(mktemp -d)
    (cd "$work" && "$go" mod init t && "$go" get -t $module/cmd/critest@$cri_tools_module &&
        "$go" test -c -o "$GOBIN/critest" $module/cmd/critest) && "$go" install $module/cmd/crictl@$cri_tools_module
    local rc=$?
    rm -rf "$work"
    return $rc
}

cri_tools() {
    local dir=$cache/cri-tools-$cri_tools_module/bin
    if [ ! -x "$dir/critest" ]; then
        say "cri-tools: building $cri_tools_module (about two minutes)"
        build_go "$dir" bash -c "$(declare -f build_cri_tools); go='$go' cri_tools_module=$cri_tools_module; build_cri_tools"
    fi
    link "$dir" "$cache/cri-tools"
    say "cri-tools: $cri_tools_module"
}

component() {
    go=$("$here/go.sh")
    say "Go: $("$go" version | cut -d' ' -f3) ($go)"
}

demo() {
    need runc=runc /bin/busybox=busybox-static
    from_suite trixie containerd containerd/1.7 containerd
}

tests() {
    component
    demo
    need gcc=gcc /usr/include/stdio.h=libc6-dev losetup=mount mkfs.ext4=e2fsprogs /usr/lib/cni/ptp=containernetworking-plugins
    from_suite forky containerd containerd/2.1 containerd
    containerd_from_module
    runc_from_module
}

critest() {
    tests
    need docker-registry=docker-registry skopeo=skopeo
    cri_tools
}

crio() {
    tests
    need conmon=conmon skopeo=skopeo
    command -v "${CRIO_BIN:-crio}" >/dev/null || die "no crio on PATH; name one in CRIO_BIN"
}

mkdir -p "$cache"
exec 9>"$cache/.lock"
flock 9
case $what in
component) component ;;
demo) demo ;;
test) tests ;;
critest) critest ;;
crio) crio ;;
*) sed -n '2,8s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
esac
