#!/bin/bash
# boot.sh: inside the guest, as root, from the shared folder. /share/boot.env says what for; results go to /share/out.
# The power is cut at the end whatever happened: the host waits for that.
set -eu
. /share/boot.env
finish() {
    local rc=$?
    echo "$rc" >/share/out/rc
    journalctl -b --no-pager -o short-monotonic >/share/out/journal 2>&1 || true
    dmesg >/share/out/dmesg 2>&1 || true
    systemd-analyze blame --no-pager >/share/out/blame 2>&1 || true
    sync
    poweroff -f
}
[ "$MODE" = shell ] || trap finish EXIT
exec >>/share/out/log 2>&1

hostname guest
echo "127.0.0.1 guest localhost" >/etc/hosts
ip link set lo up
fallocate -l 512M /swapfile && chmod 600 /swapfile && mkswap -q /swapfile && swapon /swapfile
mkdir -p /repo /opt/lab/cache/nri-warmup-lab/containerd
tar -C /repo -xf /share/repo.tar
cp -a /share/cache/. /opt/lab/cache/nri-warmup-lab/
ln -sfn /usr/bin "/opt/lab/cache/nri-warmup-lab/containerd/$SLOT"
echo "guest up $(cut -d' ' -f1 /proc/uptime) s after power-on: Linux $(uname -r), $(containerd --version | cut -d' ' -f3), $(runc --version | head -n 1), $(crun --version | head -n 1), Python $(python3 -V | cut -d' ' -f2)"
echo "cgroup: $(stat -fc %T /sys/fs/cgroup), $(cat /sys/fs/cgroup/cgroup.controllers); lru_gen $(cat /sys/kernel/mm/lru_gen/enabled); $(wc -l </proc/swaps | xargs -I{} expr {} - 1) swap; pressure: $(ls /proc/pressure | xargs)"
numactl -H | grep -E 'cpus|size|^ +[0-9]+:' || true

cat >/etc/profile.d/lab.sh <<PROFILE
export PATH=/opt/lab/venv/bin:/opt/lab/cache/nri-warmup-lab/node:$PATH
export XDG_CACHE_HOME=/opt/lab/cache PYTHONUNBUFFERED=1 NRI_WARMUP_PATIENCE=5 NRI_WARMUP_GUEST=$SUITE NRI_WARMUP_GUEST_DRIVER=$CGROUP_DRIVER
export NRI_WARMUP_GUEST_TOPOLOGY=$TOPOLOGY NRI_WARMUP_NO_SKIP=${NO_SKIP:-0}
cd /repo
PROFILE
. /etc/profile.d/lab.sh
if [ "$MODE" = shell ]; then
    systemctl restart serial-getty@ttyS0  # whoever is logged in there has none of the above yet
    exit 0
fi
rc=0
eval "set -- $PYTEST_ARGS"
timeout --signal=INT --kill-after=30 "$TEST_SECONDS" /opt/lab/venv/bin/python -m pytest -p no:cacheprovider --color=no \
    --durations=12 --tb=short --junitxml=/share/out/junit.xml -v "$@" || rc=$?
[ $rc != 124 ] || echo "the tests did not end within $TEST_SECONDS s"
exit $rc
