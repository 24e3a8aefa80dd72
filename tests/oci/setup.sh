#!/bin/bash
# setup.sh [bench]: OCI runtimes for bare bundles, unpacked and never installed: runc and crun of Debian 12 (the oldest that are
# met on nodes) and of Debian's next suite. Idempotent, cached in ${XDG_CACHE_HOME:-~/.cache}/nri-warmup-lab/oci/{runc,crun}-SUITE;
# each prints its version. LAB_REFRESH=1 asks the suites again. "bench" adds hyperfine.
#
# A runtime of the next suite wants its own, newer C library. Not by way of ld.so, since runc executes /proc/self/exe:
# the copy here names the loader and the libraries that were unpacked beside it.
set -eu
cache=${XDG_CACHE_HOME:-$HOME/.cache}/nri-warmup-lab
oci=$cache/oci
old=bookworm new=forky

say() { echo "oci: $*"; }
die() { echo "oci: $*" >&2; exit 1; }

need() {
    local missing=() pair
    for pair in "$@"; do command -v "${pair%%=*}" >/dev/null || [ -e "${pair%%=*}" ] || missing+=("${pair#*=}"); done
    [ ${#missing[@]} -gt 0 ] || return 0
    [ "$(id -u)" = 0 ] || die "not root: install ${missing[*]} first"
    say "installing ${missing[*]}"
    { apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -yq --no-install-recommends "${missing[@]}"; } >"$oci/apt.log" 2>&1 ||
        { cat "$oci/apt.log"; die "apt-get install failed"; }
}

mirror() {
    local codename
    codename=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
    # shellcheck disable=SC2016  # apt expands these
    apt-get indextargets --format '$(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' |
        awk -v codename="$codename" '$2 == codename && $3 == "main" {print $1; exit}'
}

# fetch SUITE: the .debs of runc, crun and all they need, into $oci/apt-SUITE/archives; apt has a configuration of its own.
fetch() {
    local suite=$1 apt=$oci/apt-$1 uri key keyring=
    uri=$(mirror)
    [ -n "$uri" ] || die "found no Debian archive among this machine's apt sources"
    mkdir -p "$apt"/{lists/partial,archives/partial}
    for key in /usr/share/keyrings/debian-archive-keyring.{pgp,gpg}; do
        if [ -e "$key" ]; then keyring=" [signed-by=$key]"; break; fi
    done
    echo "deb$keyring $uri $suite main" >"$apt/sources.list"
    local options=(-q -o Dir::Etc::SourceList="$apt/sources.list" -o Dir::Etc::SourceParts=/dev/null -o Dir::State::Lists="$apt/lists"
        -o Dir::Cache="$apt" -o Dir::Cache::archives="$apt/archives" -o Dir::State::status=/dev/null -o Dir::Etc::Preferences=/dev/null
        -o Acquire::Check-Valid-Until=false -o APT::Sandbox::User=root -o Acquire::Languages=none -o Debug::NoLocking=1)
    { apt-get "${options[@]}" update && apt-get "${options[@]}" install -y --download-only --no-install-recommends runc crun; } >"$apt/log" 2>&1 ||
        { cat "$apt/log"; die "could not fetch runc and crun of $suite"; }
}

# unpack SUITE: $oci/SUITE/tree, and one patched program for each runtime.
unpack() {
    local suite=$1 dir=$oci/$1 deb loader name
    rm -rf "$dir" "$dir.new"
    mkdir -p "$dir.new"
    for deb in "$oci/apt-$suite"/archives/*.deb; do dpkg -x "$deb" "$dir.new/tree"; done
    mv -T "$dir.new" "$dir"
    loader=$(find "$dir/tree" -name 'ld-linux*.so.*' | sort | head -n 1)
    for name in runc crun; do
        cp "$(find "$dir/tree/usr" -path "*bin/$name" | head -n 1)" "$dir/$name"
        patchelf --set-interpreter "$loader" --set-rpath "$(find "$dir/tree" -name 'lib*.so*' -printf '%h\n' | sort -u | paste -sd:)" "$dir/$name"
    done
    rm -rf "$oci/apt-$suite"
}

mkdir -p "$oci"
exec 9>"$oci/.lock"
flock 9
need patchelf=patchelf /bin/busybox=busybox-static gcc=gcc /usr/include/stdio.h=libc6-dev
if [ "${1:-}" = bench ]; then need hyperfine=hyperfine; fi
for suite in $old $new; do
    if [ -n "${LAB_REFRESH:-}" ] || ! { [ -x "$oci/runc-$suite" ] && [ -x "$oci/crun-$suite" ]; }; then
        say "asking $suite"
        fetch $suite
        unpack $suite
        for name in runc crun; do ln -sfn "$suite/$name" "$oci/$name-$suite"; done
    fi
    for name in runc crun; do say "$name-$suite: $("$oci/$name-$suite" --version | head -n 1)"; done
done
