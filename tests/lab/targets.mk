# Targets for the test lab, included by the Makefile.

.PHONY: test-e2e
test-e2e: $(STAMP) ## the end-to-end tests alone: containerd 1.7, 2.1, 2.4, and CRI-O where there is one
	tests/lab/setup.sh test
	$(PYTEST) -q tests/e2e

.PHONY: test-critest
test-critest: $(STAMP) ## Kubernetes' conformance tests for CRI, without the plugin and beside it (about five minutes)
	tests/lab/setup.sh critest
	$(PYTEST) -q -s tests/critest

.PHONY: test-crio
test-crio: $(STAMP) ## the end-to-end core on CRI-O: CRIO_BIN=/path/to/crio, with pinns beside it
	tests/lab/setup.sh crio
	NRI_WARMUP_NO_SKIP=1 $(PYTEST) -q tests/e2e -k crio

.PHONY: lab-shell
lab-shell: $(STAMP) ## a shell beside a running containerd with crictl, ctr and the plugin: make lab-shell LAB=2.4
	tests/lab/setup.sh $(if $(wildcard $(HOME)/.cache/nri-warmup-lab/cri-tools/crictl),test,critest)
	$(BIN)/python -m tests.lab.shell $(or $(LAB),2.4)
