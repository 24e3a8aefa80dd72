# The booted guest: cgroup v2, NUMA nodes, a kubelet. Included by the Makefile; CONTRIBUTING.md, "The guest".
SUITE ?= trixie
TOPOLOGY ?= two-nodes
CGROUP_DRIVER ?= systemd
GUEST = $(BIN)/python -m tests.lab.vm
GUEST_OPTIONS = --suite $(SUITE) --topology $(TOPOLOGY) --driver $(CGROUP_DRIVER) $(if $(COMMIT),--commit $(COMMIT)) $(if $(GUEST_ARGS),-- $(GUEST_ARGS))

.PHONY: test-vm
test-vm: $(STAMP) ## tests/vm in a booted guest: make test-vm SUITE=trixie|forky TOPOLOGY=two-nodes|… CGROUP_DRIVER=cgroupfs|systemd
	tests/lab/vm/setup.sh vm
	$(GUEST) test $(GUEST_OPTIONS)

.PHONY: test-node
test-node: $(STAMP) ## tests/vm/node in the guest: a real kubelet on containerd 2.4
	tests/lab/setup.sh test
	tests/lab/vm/setup.sh node
	$(GUEST) node $(GUEST_OPTIONS)

.PHONY: test-guest
test-guest: $(STAMP) ## what CI boots: one guest, trixie, systemd driver, two nodes, kubelet, the tests marked ci_guest
	tests/lab/setup.sh test
	tests/lab/vm/setup.sh node
	$(GUEST) ci

.PHONY: vm-shell
vm-shell: $(STAMP) ## a root shell in the guest (end it with poweroff); the tree is at /repo, pytest on PATH
	tests/lab/setup.sh test
	tests/lab/vm/setup.sh node
	$(GUEST) shell $(GUEST_OPTIONS)
